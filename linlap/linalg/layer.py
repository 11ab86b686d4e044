"""Precision of a layer whose bias shares the eigenbasis of its weight: rotated once for both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.linalg.base import SPD
from linlap.linalg.dense import Spectral
from linlap.linalg.kronecker import Kronecker


@dataclass(frozen=True, eq=False)
class KroneckerLayer(SPD):
    """Block diagonal over a weight `[k, rows, cols]` and then a bias `[k, rows]` with eigenvalues `bias` in the
    weight's left basis: as if the weight had one more input, always 1."""

    weight: Kronecker
    bias: Tensor

    def working(self, dtype: torch.dtype) -> KroneckerLayer:
        return KroneckerLayer(self.weight.working(dtype), self.bias.to(dtype))

    @property
    def shift(self) -> SPD:
        """The operator of the bias alone."""
        if self.weight.left is not None and len(self.weight.left) == 1:
            return Spectral(self.weight.left[0], self.bias[0])
        return Kronecker(self.weight.left, None, self.bias.unsqueeze(-1))

    @property
    def dim(self) -> int:
        return self.weight.dim + self.bias.numel()

    def _split(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return v[..., : self.weight.dim], v[..., self.weight.dim :]

    def matmul(self, v: Tensor) -> Tensor:
        w, b = self._split(v)
        return torch.cat([self.weight.matmul(w), self.shift.matmul(b)], -1)

    def solve(self, v: Tensor) -> Tensor:
        w, b = self._split(v)
        return torch.cat([self.weight.solve(w), self.shift.solve(b)], -1)

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        w, b = self._split(noise)
        return torch.cat([self.weight.inverse_sqrt(w), self.shift.inverse_sqrt(b)], -1)

    def logdet(self) -> Tensor:
        return self.weight.logdet() + self.bias.log().sum()

    def variance(self) -> Tensor:
        return torch.cat([self.weight.variance(), self.shift.variance()])

    def dense(self) -> Tensor:
        return torch.block_diag(self.weight.dense(), self.shift.dense())
