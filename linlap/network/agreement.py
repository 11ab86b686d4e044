"""When two ways to the same numbers agree."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from linlap.jacobian import ParameterBlock


def adds_up(blocks: Mapping[str, ParameterBlock], name: str, truth: Tensor, floor: float) -> bool:
    """Whether a block gives autograd's sum over inputs, and nothing for inputs that have no seed."""
    try:
        block = blocks[name]
    except (RuntimeError, ValueError, TypeError):  # calls of kinds that have no common normal form
        return False
    n, r = block.rows
    first = (torch.arange(r, device=truth.device) == 0).to(truth.dtype)
    norms = block.gram(torch.ones_like(truth), diagonal=True).clamp_min(0).sqrt()  # [n, 1 + n]
    stray = norms[:, 1:].masked_fill(torch.eye(n, dtype=torch.bool, device=truth.device), 0)
    right = close(block.vjp(first.expand(n, r)), truth, floor)
    return right and bool(stray.max() <= _tolerance(norms.dtype) * norms.max() + floor)


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-8 if dtype == torch.float64 else 1e-3


def close(one: Tensor, other: Tensor, floor: float = 1e-30) -> bool:
    scale = max(largest(one), largest(other))
    return largest(one - other) <= _tolerance(one.dtype) * scale + floor


def largest(t: Tensor) -> float:
    """max |t|, without a copy as large as t; NaN if there is one."""
    low, high = torch.aminmax(t)
    return float(torch.maximum(-low, high))
