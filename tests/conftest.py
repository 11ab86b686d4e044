"""One thread: the tests are many small computations, and machines that run them are shared."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
