"""Block-diagonal precision: groups of weights that do not know of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.linalg.base import SPD


@dataclass(frozen=True, eq=False)
class BlockDiagonal(SPD):
    """Operators along the diagonal, in the order of the mapping; its keys say which weights each one holds."""

    blocks: Mapping[tuple[str, ...], SPD]

    @property
    def dim(self) -> int:
        return sum(block.dim for block in self.blocks.values())

    def _map(self, v: Tensor, action: Callable[[SPD, Tensor], Tensor]) -> Tensor:
        pieces = v.split([block.dim for block in self.blocks.values()], dim=-1)
        done = [action(block, piece) for block, piece in zip(self.blocks.values(), pieces, strict=True)]
        return torch.cat(done, dim=-1)

    def matmul(self, v: Tensor) -> Tensor:
        return self._map(v, lambda block, piece: block.matmul(piece))

    def solve(self, v: Tensor) -> Tensor:
        return self._map(v, lambda block, piece: block.solve(piece))

    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        return self._map(noise, lambda block, piece: block.inverse_sqrt(piece))

    def logdet(self) -> Tensor:
        return torch.stack([block.logdet() for block in self.blocks.values()]).sum()

    def variance(self) -> Tensor:
        return torch.cat([block.variance() for block in self.blocks.values()])

    def to(self, dtype: torch.dtype) -> BlockDiagonal:
        return BlockDiagonal({names: block.to(dtype) for names, block in self.blocks.items()})

    def working(self, dtype: torch.dtype) -> BlockDiagonal:
        return BlockDiagonal({names: block.working(dtype) for names, block in self.blocks.items()})

    def dense(self) -> Tensor:
        return torch.block_diag(*[block.dense() for block in self.blocks.values()])
