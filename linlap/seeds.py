"""Random numbers that a seed and a number decide, and not what was drawn before."""

from __future__ import annotations

import numpy as np
import torch


def generator_for(seed: int, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Different for every pair. torch's generator on a CPU takes 32 bits of a seed, so both are mixed into those."""
    (mixed,) = np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(1)
    return torch.Generator(device).manual_seed(int(mixed))
