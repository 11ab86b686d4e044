"""Spaces for refinements that look at no bound: the cheaper one, and curvature in the precision that is fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from linlap.linalg import safe_cholesky
from linlap.refine.problem import Problem
from linlap.refine.spaces import Factor, FunctionSpace, Space, WeightSpace, root_of, times


@dataclass(frozen=True, eq=False)
class SingleWeightSpace(WeightSpace):
    """As `WeightSpace`, with products of J in float32, on a GPU with TF32's three digits.

    The precision is a matrix times its own transpose plus D: rounding its entries leaves it positive definite, and
    changes it by less than the one sample of f does in every step. Factors stay in float64.
    """

    @cached_property
    def _rows(self) -> Tensor:
        return self.problem.J.float()

    def outputs(self, mean: Tensor) -> Tensor:
        p = self.problem
        return p.f + self._like_outputs(self._seen(mean - p.theta))

    def gradient(self, mean: Tensor, residual: Tensor) -> Tensor:
        return self._pulled(residual) - self.problem.d * mean

    def factor(self, blocks: Tensor) -> Factor:
        root = root_of(blocks)
        with _tf32(blocks.device):
            rows = (root.mT.float() @ self._rows.unflatten(-2, blocks.shape[-3:-1])).flatten(-3, -2)
            precision = (rows.mT @ rows).double()
        precision.diagonal(dim1=-2, dim2=-1).add_(self.problem.d)
        return Factor(safe_cholesky(precision, "posterior precision"), root)

    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        pulled = self._pulled(times(factor.root, data_noise))
        noise = (self.problem.d.sqrt() * prior_noise + pulled).unsqueeze(-1)
        return self._like_outputs(self._seen(torch.cholesky_solve(noise, factor.lower).squeeze(-1)))

    def _seen(self, v: Tensor) -> Tensor:
        """J v."""
        return times(self._rows, v.float()).double()

    def _pulled(self, u: Tensor) -> Tensor:
        """Jᵀ u for u `[…, N, C]`."""
        return times(self._rows.mT, u.flatten(-2).float()).double()


def quicker(problem: Problem) -> Space:
    """Over outputs or over weights, by counted multiplications of a step."""
    p, rows, outputs = problem.size, problem.rows, problem.f.shape[-1]
    over_outputs = rows**3 / 6 + 2 * outputs * rows**2
    over_weights = rows * p**2 + p**3 / 6
    return FunctionSpace(problem) if over_outputs < over_weights else SingleWeightSpace(problem)


@contextmanager
def _tf32(device: torch.device) -> Iterator[None]:
    """Products on a GPU may round to three digits."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
