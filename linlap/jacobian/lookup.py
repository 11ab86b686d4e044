"""The block of an embedding: each position touches one row of the table, and no one-hot vector is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.jacobian.block import ParameterBlock, gram_of


@dataclass(frozen=True, eq=False)
class LookupBlock(ParameterBlock):
    """`index` `[n, s]` into the table's rows, `g` `[n, r, s, d]`; g is zero at positions that do not train."""

    index: Tensor
    g: Tensor
    shape: torch.Size
    counted: Tensor
    """Which positions count as uses of a row, `[n, s]`: padding does not."""

    @property
    def like(self) -> Tensor:
        return self.g

    @property
    def rows(self) -> tuple[int, int]:
        return self.g.shape[0], self.g.shape[1]

    @property
    def positions(self) -> int:
        return self.index.shape[1]

    def distinct(self) -> Tensor:
        """g with repeated rows of an input summed into their first position, so that positions are distinct."""
        first = (self.index.unsqueeze(2) == self.index.unsqueeze(1)).int().argmax(-1)  # [n, s]
        where = first[:, None, :, None].expand(self.g.shape)
        return torch.zeros_like(self.g).scatter_add_(2, where, self.g)

    def dense(self) -> Tensor:
        n, r = self.rows
        table = self.g.new_zeros(n, r, *self.shape)
        where = self.index[:, None, :, None].expand(self.g.shape)
        return table.scatter_add_(2, where, self.g).flatten(2)

    def jvp(self, v: Tensor) -> Tensor:
        rows = v.reshape(-1, *self.shape)[:, self.index]  # [m, n, s, d]
        return torch.einsum("mnsd,nrsd->mnr", rows, self.g)

    def vjp(self, u: Tensor) -> Tensor:
        weighted = torch.einsum("nr,nrsd->nsd", u, self.g)
        return self._scatter(weighted).flatten()

    def gram(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        selected = weights.reshape(self.shape)[self.index].unsqueeze(1)  # [n, 1, s, d]
        return gram_of((self.distinct() * selected.sqrt()).flatten(2), diagonal)

    def square_sum(self) -> Tensor:
        return self._scatter(self.distinct().square().sum(1)).flatten()

    def split(self, size: int) -> Iterator[LookupBlock]:
        for index, g, counted in zip(self.index.split(size), self.g.split(size), self.counted.split(size), strict=True):
            yield LookupBlock(index, g, self.shape, counted)

    def seed(self, index: int) -> LookupBlock:
        return LookupBlock(self.index, self.g[:, index : index + 1], self.shape, self.counted)

    def to(self, dtype: torch.dtype) -> LookupBlock:
        return LookupBlock(self.index, self.g.to(dtype), self.shape, self.counted)

    @property
    def numbers(self) -> tuple[int, int]:
        return self.positions**2, self.g.shape[2:].numel()

    def rotated(self, basis: Tensor | None) -> LookupBlock:
        """g U_g; the other factor is diagonal, so its basis is the identity."""
        g = self.g if basis is None else self.g @ basis
        return LookupBlock(self.index, g, self.shape, self.counted)

    def factors(self, sharing: str) -> tuple[Tensor, Tensor]:
        """The diagonal `[V]` of Σ a aᵀ for one-hot a, and Σ g gᵀ `[1, d, d]`.

        When reduced, the averaged one-hot vectors have a full second moment; its diagonal is kept.
        """
        uses = self.counted.to(self.g.dtype)
        g = self.g
        if sharing == "reduce":
            same = (self.index.unsqueeze(2) == self.index.unsqueeze(1)).to(uses.dtype)
            uses = uses * (same @ uses.unsqueeze(-1)).squeeze(-1) / self.positions**2
            g = g.sum(2, keepdim=True)
        flat = g.reshape(-1, g.shape[-1])
        counts = uses.new_zeros(self.shape[0]).index_add_(0, self.index.flatten(), uses.flatten())
        return counts, (flat.mT @ flat).unsqueeze(0)

    def _scatter(self, rows: Tensor) -> Tensor:
        """Sum of rows `[n, s, d]` into the table `[V, d]`."""
        table = rows.new_zeros(self.shape)
        return table.index_add_(0, self.index.flatten(), rows.reshape(-1, rows.shape[-1]))

    @classmethod
    def join(cls, parts: Sequence[LookupBlock]) -> LookupBlock:
        if len(parts) == 1:
            return parts[0]
        index = torch.cat([part.index for part in parts], dim=1)
        g = torch.cat([part.g for part in parts], dim=2)
        return cls(index, g, parts[0].shape, torch.cat([part.counted for part in parts], dim=1))
