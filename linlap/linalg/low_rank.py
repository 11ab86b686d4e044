"""Precision that is diagonal plus low rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.linalg.base import SPD


@dataclass(frozen=True, eq=False)
class LowRank(SPD):
    """P = D^½ (I + W diag(values) Wᵀ) D^½ with D = diag(scale) `[p]` and orthonormal columns W `[p, k]`.

    `log_det`, where given, is log det P with the derivative that the other tensors lack.
    """

    vectors: Tensor
    values: Tensor
    scale: Tensor
    log_det: Tensor | None = None

    @property
    def dim(self) -> int:
        return self.scale.numel()

    def working(self, dtype: torch.dtype) -> LowRank:
        """As it is: variances are differences of large numbers, of which float32 keeps too few digits."""
        return self

    def _apply(self, v: Tensor, change: Tensor) -> Tensor:
        """(I + W diag(change) Wᵀ) v."""
        return v + ((v @ self.vectors) * change) @ self.vectors.mT

    def matmul(self, v: Tensor) -> Tensor:
        root = self.scale.sqrt()
        return self._apply(v * root, self.values) * root

    def solve(self, v: Tensor) -> Tensor:
        root = self.scale.rsqrt()
        return self._apply(v * root, -self.values / (1 + self.values)) * root

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        return self._apply(noise, (1 + self.values).rsqrt() - 1) * self.scale.rsqrt()

    def logdet(self) -> Tensor:
        if self.log_det is not None:
            return self.log_det
        return self.scale.log().sum() + torch.log1p(self.values).sum()

    def variance(self) -> Tensor:
        shrink = self.values / (1 + self.values)
        return (1 - self.vectors.square() @ shrink) / self.scale

    def dense(self) -> Tensor:
        root = self.scale.sqrt()
        return torch.diag(self.scale) + root[:, None] * ((self.vectors * self.values) @ self.vectors.mT) * root
