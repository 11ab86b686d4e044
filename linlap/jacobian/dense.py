"""A block kept as it is: biases, norm layers, and every parameter that no known layer explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.jacobian.block import ParameterBlock, distinct, gram_of_columns, squares_over_seeds


@dataclass(frozen=True, eq=False)
class DenseBlock(ParameterBlock):
    """`j` `[n, r, p]`."""

    j: Tensor
    shape: torch.Size

    @property
    def like(self) -> Tensor:
        return self.j

    @property
    def rows(self) -> tuple[int, int]:
        return self.j.shape[0], self.j.shape[1]

    def dense(self) -> Tensor:
        return self.j

    def jvp(self, v: Tensor) -> Tensor:
        return torch.einsum("nrp,mp->mnr", self.j, v)

    def vjp(self, u: Tensor) -> Tensor:
        return torch.einsum("nr,nrp->p", u, self.j)

    def gram(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        if diagonal:
            return (distinct(self.j).square() @ weights).expand(self.rows)
        return (self.j * weights) @ self.j.mT

    def square_sum(self) -> Tensor:
        return squares_over_seeds(self.j).sum(0)

    def split(self, size: int) -> Iterator[DenseBlock]:
        for j in self.j.split(size):
            yield DenseBlock(j, self.shape)

    def seed(self, index: int) -> DenseBlock:
        return DenseBlock(self.j[:, index : index + 1], self.shape)

    def to(self, dtype: torch.dtype) -> DenseBlock:
        return DenseBlock(self.j.to(dtype), self.shape)

    @property
    def numbers(self) -> tuple[int, int]:
        return 0, self.size

    def rotated(self, basis: Tensor) -> Tensor:
        """J U, `[n, r, p]`."""
        return self.j @ basis

    def second_moment(self) -> Tensor:
        """Σ over inputs and seeds of Jᵀ J, `[p, p]`."""
        return gram_of_columns(self.j.reshape(-1, self.j.shape[-1]))

    @classmethod
    def join(cls, parts: Sequence[DenseBlock]) -> DenseBlock:
        if len(parts) == 1:
            return parts[0]
        return cls(torch.stack([part.j for part in parts]).sum(0), parts[0].shape)
