"""Diagonal precision: independent weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from linlap.linalg.base import SPD


@dataclass(frozen=True, eq=False)
class Diagonal(SPD):
    """P = diag(values), `values` `[p]`."""

    values: Tensor

    @property
    def dim(self) -> int:
        return self.values.numel()

    def matmul(self, v: Tensor) -> Tensor:
        return v * self.values

    def solve(self, v: Tensor) -> Tensor:
        return v / self.values

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        return noise * self.values.rsqrt()

    def logdet(self) -> Tensor:
        return self.values.log().sum()

    def variance(self) -> Tensor:
        return self.values.reciprocal()

    def dense(self) -> Tensor:
        return self.values.diag()
