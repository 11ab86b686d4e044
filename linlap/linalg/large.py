"""Cholesky factors of matrices too large to hold twice, in place and a panel at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from linlap.linalg.factor import safe_cholesky, scale_of

LARGE = 4096
"""Rows from which a factor is made so."""
_PANEL = 1024


def cholesky_in_place(
    matrix: Tensor,
    what: str = "matrix",
    step: Callable[[float], object] | None = None,
    digits: torch.dtype | None = None,
) -> Tensor:
    """Lower factor of `[d, d]`, written over the matrix; `step` is told the share of the work as it is done."""
    d, scale = len(matrix), scale_of(matrix)
    for start in range(0, d, _PANEL):
        stop = min(start + _PANEL, d)
        corner = safe_cholesky(matrix[start:stop, start:stop], what, digits=digits, scale=scale)
        matrix[start:stop, start:stop] = corner
        matrix[start:stop, stop:] = 0
        if stop < d:
            below = matrix[stop:, start:stop]
            below.copy_(torch.linalg.solve_triangular(corner.mT, below, upper=True, left=False))
            for left in range(stop, d, _PANEL):
                right = min(left + _PANEL, d)
                matrix[left:, left:right].addmm_(matrix[left:, start:stop], matrix[left:right, start:stop].mT, alpha=-1)
        if step is not None:
            step(((d - start) ** 3 - (d - stop) ** 3) / d**3)
    return matrix
