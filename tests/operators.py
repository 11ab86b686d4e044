"""Positive definite operators and blocks of Jacobians that they meet, all over the same 24 weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linlap import linalg
from linlap.jacobian import Block, DenseBlock, Jacobian, LookupBlock, OuterBlock
from linlap.linalg import SPD
from tests.checks import noise, orthogonal, spd, varied

WEIGHTS, SHAPE = 24, torch.Size([6, 4])
INPUTS, SEEDS = 5, 3


@dataclass(frozen=True)
class BlockCase:
    """A block of a Jacobian for a parameter of 6 rows and 4 columns, and J `[n, r, 24]` by its definition."""

    name: str
    make: Callable[[], Block]
    define: Callable[[Block], Tensor]
    groups: int = 1
    pair: bool = False
    """Two parameters, a weight of 4 rows and 5 columns and its bias of 4."""

    def build(self) -> tuple[Block, Tensor]:
        block = self.make()
        return block, self.define(block)


@dataclass(frozen=True)
class OperatorCase:
    """An operator over 24 weights, and which blocks it can meet."""

    name: str
    make: Callable[[], SPD]
    meets: Callable[[BlockCase], bool] = lambda block: not block.pair


# Blocks


def dense_block() -> DenseBlock:
    return DenseBlock(noise(INPUTS, SEEDS, WEIGHTS, seed="dense"), SHAPE)


def outer_block(s: int, o: int, i: int, k: int = 1, flip: bool = False) -> OuterBlock:
    return OuterBlock(noise(INPUTS, k, s, i, seed="a"), noise(INPUTS, SEEDS, k, s, o, seed="g"), SHAPE, flip)


def strided_block(s: int, o: int, i: int, k: int = 1) -> OuterBlock:
    """With the memory orders that convolutions give: positions last in g, a from a view."""
    block = outer_block(s, o, i, k)
    a = block.a.transpose(0, 2).contiguous().transpose(0, 2)
    return OuterBlock(a, block.g.mT.contiguous().mT, SHAPE)


def alike(block: OuterBlock) -> OuterBlock:
    """With the first input's g for all, held once."""
    return replace(block, g=block.g[:1].expand(block.g.shape))


def lookup_block() -> LookupBlock:
    """Rows repeat within an input, and the positions that hold row 1 do not train."""
    index = torch.tensor([[0, 2, 2, 0, 5, 2], [1, 1, 3, 4, 3, 1]] * 3)[:INPUTS]
    counted = (index != 1).long()
    g = noise(INPUTS, SEEDS, 6, 4, seed="lookup") * counted[:, None, :, None]
    return LookupBlock(index, g, SHAPE, counted)


def of_dense(block: Block) -> Tensor:
    assert isinstance(block, DenseBlock)
    return block.j


def of_outer(block: Block) -> Tensor:
    """Σ_s g ⊗ a of each group, one number of inputs, seeds and groups at a time."""
    assert isinstance(block, OuterBlock)
    (n, r), (k, s, o, i) = block.rows, block.sizes
    j = torch.zeros(n, r, k, *((i, o) if block.flip else (o, i)), dtype=block.a.dtype)
    for x in range(n):
        for u in range(r):
            for group in range(k):
                for place in range(s):
                    m = torch.outer(block.g[x, u, group, place], block.a[x, group, place])
                    j[x, u, group] += m.T if block.flip else m
    return j.flatten(2)


def of_lookup(block: Block) -> Tensor:
    """With one-hot vectors."""
    assert isinstance(block, LookupBlock)
    one_hot = torch.nn.functional.one_hot(block.index, block.shape[0]).to(block.g.dtype)
    return torch.einsum("nsv,nrsd->nrvd", one_hot, block.g).flatten(2)


def layer_jacobian(s: int, known: bool) -> Jacobian:
    """A weight of 4 rows and 5 columns and its bias; the two may be known to be of one layer that was called once."""
    a, g = noise(INPUTS, 1, s, 5, seed="a"), noise(INPUTS, SEEDS, 1, s, 4, seed="g")
    blocks = {"w": OuterBlock(a, g, torch.Size([4, 5])), "b": DenseBlock(g[:, :, 0].sum(2), torch.Size([4]))}
    return replace(Jacobian.of(blocks), biases={"w": "b"} if known else {})


def last_layer_jacobian() -> Jacobian:
    """Where outputs are the layer's own: g is the identity, whatever the input."""
    g = torch.eye(4, dtype=torch.float64).expand(INPUTS, 4, 4)
    weight = OuterBlock(noise(INPUTS, 1, 1, 5, seed="a"), g[:, :, None, None], torch.Size([4, 5]))
    return replace(Jacobian.of({"w": weight, "b": DenseBlock(g, torch.Size([4]))}), biases={"w": "b"})


def of_layer(block: Block) -> Tensor:
    assert isinstance(block, Jacobian)
    weight, bias = block.blocks.values()
    return torch.cat([of_outer(weight), of_dense(bias)], -1)


BLOCKS = [
    BlockCase("dense", dense_block, of_dense),
    BlockCase("outer", lambda: outer_block(1, 6, 4), of_outer),
    BlockCase("outer_positions", lambda: outer_block(3, 6, 4), of_outer),
    # More positions than features: the other order of every choice.
    BlockCase("outer_many_positions", lambda: outer_block(30, 6, 4), of_outer),
    BlockCase("outer_strided", lambda: strided_block(7, 6, 4), of_outer),
    BlockCase("outer_groups", lambda: outer_block(1, 3, 4, 2), of_outer, groups=2),
    BlockCase("outer_groups_positions", lambda: strided_block(9, 3, 4, 2), of_outer, groups=2),
    BlockCase("outer_flip", lambda: outer_block(1, 4, 6, flip=True), of_outer),
    BlockCase("outer_flip_positions", lambda: outer_block(8, 4, 6, flip=True), of_outer),
    BlockCase("outer_flip_groups", lambda: outer_block(5, 4, 3, 2, flip=True), of_outer, groups=2),
    BlockCase("outer_alike", lambda: alike(outer_block(1, 6, 4)), of_outer),
    BlockCase("outer_alike_positions", lambda: alike(outer_block(3, 6, 4)), of_outer),
    BlockCase("outer_alike_groups", lambda: alike(outer_block(1, 3, 4, 2)), of_outer, groups=2),
    BlockCase("lookup", lookup_block, of_lookup),
    BlockCase("layer", lambda: layer_jacobian(1, known=True), of_layer, pair=True),
    BlockCase("layer_apart", lambda: layer_jacobian(1, known=False), of_layer, pair=True),
    BlockCase("layer_last", last_layer_jacobian, of_layer, pair=True),
    BlockCase("layer_positions", lambda: layer_jacobian(3, known=False), of_layer, pair=True),
]


# Operators


def kronecker(k: int, rows: int, cols: int, left: bool = True, right: bool = True) -> linalg.Kronecker:
    return linalg.Kronecker(
        orthogonal(rows, k, seed="left") if left else None,
        orthogonal(cols, k, seed="right") if right else None,
        varied(k * rows * cols).reshape(k, rows, cols),
    )


def low_rank(rank: int) -> linalg.LowRank:
    return linalg.LowRank(orthogonal(WEIGHTS)[:, :rank], varied(rank, 0.1, 30.0), varied(WEIGHTS))


def kronecker_layer() -> linalg.KroneckerLayer:
    return linalg.KroneckerLayer(kronecker(1, 4, 5), varied(4).reshape(1, 4))


def block_diagonal() -> linalg.BlockDiagonal:
    blocks: Mapping[tuple[str, ...], SPD] = {("w",): kronecker(1, 4, 5), ("b",): linalg.Dense.of(spd(4))}
    return linalg.BlockDiagonal(blocks)


def one_group(block: BlockCase) -> bool:
    return block.groups == 1 and not block.pair


def two_groups(block: BlockCase) -> bool:
    return block.groups == 2


def no_lookup(block: BlockCase) -> bool:
    """One-hot inputs have the identity as their basis, and no other can be asked of them."""
    return one_group(block) and block.name != "lookup"


def two_parameters(block: BlockCase) -> bool:
    return block.pair
