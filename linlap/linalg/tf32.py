"""TF32: whether products on a GPU may round to three digits, and how to go without for a while.

torch has two sets of switches for it, and refuses to read the older where the newer was used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def tf32_allowed() -> bool:
    """Whether matrix products on a GPU may use it."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        switch: Any = torch.backends.cuda.matmul
        return bool(switch.fp32_precision == "tf32")


@contextmanager
def without_tf32(device: torch.device) -> Iterator[None]:
    """Products and convolutions with all digits of float32."""
    if device.type != "cuda":
        yield
        return
    try:
        products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        with _without_by_newer_switches():
            yield
        return
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


@contextmanager
def _without_by_newer_switches() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    switches: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
