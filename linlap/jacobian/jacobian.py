"""The whole Jacobian: one block a parameter, never a dense matrix unless asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from linlap.jacobian.block import Block, ParameterBlock


@dataclass(frozen=True, eq=False)
class Jacobian(Block):
    """Blocks by parameter name; as one block, its columns are those of the blocks in order.

    The mapping may make a block anew each time it is asked, so that only one exists at a time.
    """

    blocks: Mapping[str, ParameterBlock]
    shapes: Mapping[str, torch.Size]
    anchor: Tensor
    counts: tuple[int, int]
    biases: Mapping[str, str] = field(default_factory=dict)
    """The bias that goes with a weight: both come from the same g."""

    @classmethod
    def of(cls, blocks: Mapping[str, ParameterBlock]) -> Jacobian:
        blocks = dict(blocks.items())
        first = next(iter(blocks.values()))
        return cls(blocks, {name: block.shape for name, block in blocks.items()}, first.like, first.rows)

    @property
    def like(self) -> Tensor:
        return self.anchor

    @property
    def rows(self) -> tuple[int, int]:
        return self.counts

    @property
    def size(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def select(self, names: Sequence[str]) -> Block:
        """The columns of some parameters; a single one as its own block."""
        if len(names) == 1:
            return self.blocks[names[0]]
        if list(names) == list(self.shapes):
            return self
        chosen = Jacobian.of({name: self.blocks[name] for name in names})
        return replace(chosen, biases=self.biases)

    def _pair(self, v: Tensor) -> Iterator[tuple[Block, Tensor]]:
        pieces = v.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return zip(self.blocks.values(), pieces, strict=True)

    def dense(self) -> Tensor:
        return torch.cat([block.dense() for block in self.blocks.values()], dim=-1)

    def jvp(self, v: Tensor) -> Tensor:
        return _total(block.jvp(piece) for block, piece in self._pair(v))

    def vjp(self, u: Tensor) -> Tensor:
        return torch.cat([block.vjp(u) for block in self.blocks.values()])

    def gram(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        return _total(block.gram(piece, diagonal) for block, piece in self._pair(weights))

    def square_sum(self) -> Tensor:
        return torch.cat([block.square_sum() for block in self.blocks.values()])

    def split(self, size: int) -> Iterator[Jacobian]:
        for parts in zip(*[block.split(size) for block in self.blocks.values()], strict=True):
            yield replace(Jacobian.of(dict(zip(self.shapes, parts, strict=True))), biases=self.biases)

    def seed(self, index: int) -> Jacobian:
        blocks = {name: block.seed(index) for name, block in self.blocks.items()}
        return replace(Jacobian.of(blocks), biases=self.biases)

    def to(self, dtype: torch.dtype) -> Jacobian:
        return Jacobian.of({name: block.to(dtype) for name, block in self.blocks.items()})


def _total(parts: Iterator[Tensor]) -> Tensor:
    """Their sum, one held at a time."""
    total = next(parts)
    for part in parts:
        total = total + part
    return total
