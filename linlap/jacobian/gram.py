"""J diag(w) Jᵀ of a formed Jacobian, by whichever product reads it at the machine's rate."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from torch import Tensor

from linlap.jacobian.block import gram_of


def weighted_gram(j: Tensor, weights: Tensor, diagonal: bool = False) -> Tensor:
    """For J `[n, k, r, o, i]`, which is used up, and weights `[k, o, i]` ≥ 0: `[n, r, r]`, or its diagonal `[n, r]`."""
    kernel = _kernel() if j.is_cuda else None
    if kernel is not None and kernel.serves(j, weights):
        total: Tensor = kernel.gram(j, weights)
        return total.diagonal(dim1=-2, dim2=-1) if diagonal else total
    scaled = j.mul_(weights.sqrt().unsqueeze(1))
    return gram_of(scaled.flatten(3).transpose(1, 2).flatten(2), diagonal)


@cache
def _kernel() -> ModuleType | None:
    """The GPU's own, where Triton is installed."""
    try:
        from linlap.jacobian import gpu_gram
    except ImportError:
        return None
    return gpu_gram
