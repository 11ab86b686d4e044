"""Dense precision, by its Cholesky factor or by its eigendecomposition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.linalg.base import SPD
from linlap.linalg.factor import rounded, safe_cholesky


@dataclass(frozen=True, eq=False)
class Dense(SPD):
    """P = L Lᵀ by its lower Cholesky factor `[p, p]`."""

    factor: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> Dense:
        return cls(safe_cholesky(matrix, "posterior precision"))

    @property
    def dim(self) -> int:
        return self.factor.shape[-1]

    def matmul(self, v: Tensor) -> Tensor:
        return (v @ self.factor) @ self.factor.mT

    def solve(self, v: Tensor) -> Tensor:
        flat = v.reshape(-1, self.dim)
        return torch.cholesky_solve(flat.mT, self.factor).mT.reshape(v.shape)

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        flat = noise.reshape(-1, self.dim)
        return torch.linalg.solve_triangular(self.factor.mT, flat.mT, upper=True).mT.reshape(noise.shape)

    def logdet(self) -> Tensor:
        return 2.0 * self.factor.diagonal().log().sum()

    def variance(self) -> Tensor:
        return torch.cholesky_inverse(self.factor).diagonal()

    def dense(self) -> Tensor:
        return self.factor @ self.factor.mT


@dataclass(frozen=True, eq=False)
class Spectral(SPD):
    """P = U diag(values) Uᵀ with orthogonal U `[p, p]`: another prior only changes the values."""

    vectors: Tensor
    values: Tensor

    def working(self, dtype: torch.dtype) -> Spectral:
        return Spectral(rounded(self.vectors, dtype), self.values.to(dtype))

    @property
    def dim(self) -> int:
        return self.values.numel()

    def matmul(self, v: Tensor) -> Tensor:
        return ((v @ self.vectors) * self.values) @ self.vectors.mT

    def solve(self, v: Tensor) -> Tensor:
        return ((v @ self.vectors) / self.values) @ self.vectors.mT

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        return (noise * self.values.rsqrt()) @ self.vectors.mT

    def logdet(self) -> Tensor:
        return self.values.log().sum()

    def variance(self) -> Tensor:
        return self.vectors.square() @ self.values.reciprocal()

    def dense(self) -> Tensor:
        return (self.vectors * self.values) @ self.vectors.mT
