"""Precision in a Kronecker eigenbasis: one pair of small orthogonal matrices, a full matrix of eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from linlap.linalg.base import SPD
from linlap.linalg.factor import rounded


@dataclass(frozen=True, eq=False)
class Kronecker(SPD):
    """P = (U_l ⊗ U_r) diag(values) (U_l ⊗ U_r)ᵀ for weights read as k matrices `[k, rows, cols]`.

    `left` `[k, rows, rows]` and `right` `[k, cols, cols]` are orthogonal, or None for the identity;
    `values` `[k, rows, cols]` need not factorise, so that a prior and re-estimated eigenvalues fit in exactly.
    """

    left: Tensor | None
    right: Tensor | None
    values: Tensor

    @cached_property
    def inverse_values(self) -> Tensor:
        """1 / values, kept: predictions weight by it, batch after batch, in whatever mode the first is."""
        with torch.inference_mode(False), torch.enable_grad():
            return self.values.reciprocal()

    def working(self, dtype: torch.dtype) -> Kronecker:
        left = None if self.left is None else rounded(self.left, dtype)
        right = None if self.right is None else rounded(self.right, dtype)
        return Kronecker(left, right, self.values.to(dtype))

    @property
    def dim(self) -> int:
        return self.values.numel()

    def to_basis(self, v: Tensor) -> Tensor:
        """U_lᵀ V U_r of vectors `[..., p]`, as `[..., k, rows, cols]`."""
        m = v.reshape(*v.shape[:-1], *self.values.shape)
        m = m if self.left is None else self.left.mT @ m
        return m if self.right is None else m @ self.right

    def from_basis(self, m: Tensor) -> Tensor:
        m = m if self.left is None else self.left @ m
        m = m if self.right is None else m @ self.right.mT
        return m.flatten(-3)

    def matmul(self, v: Tensor) -> Tensor:
        return self.from_basis(self.to_basis(v) * self.values)

    def solve(self, v: Tensor) -> Tensor:
        return self.from_basis(self.to_basis(v) / self.values)

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        return self.from_basis(noise.reshape(*noise.shape[:-1], *self.values.shape) * self.values.rsqrt())

    def logdet(self) -> Tensor:
        return self.values.log().sum()

    def variance(self) -> Tensor:
        m = self.inverse_values
        m = m if self.left is None else self.left.square() @ m
        m = m if self.right is None else m @ self.right.square().mT
        return m.flatten()

    def dense(self) -> Tensor:
        eye = torch.eye(self.dim, dtype=self.values.dtype, device=self.values.device)
        return self.matmul(eye)
