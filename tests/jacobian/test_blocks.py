"""Every kind of block against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from linlap.jacobian import DenseBlock, LookupBlock, OuterBlock, gram_of_columns, outer
from tests.checks import close, noise, varied
from tests.operators import BLOCKS, SHAPE, BlockCase, of_lookup, of_outer, outer_block

blocks = pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.name)
TIGHT = 1e-12


@blocks
def test_definition(case: BlockCase) -> None:
    block, j = case.build()
    close(block.dense(), j, TIGHT)
    assert block.rows == tuple(j.shape[:2])
    assert block.size == j.shape[2]
    assert block.like.dtype == torch.float64


@blocks
def test_products_with_vectors(case: BlockCase) -> None:
    block, j = case.build()
    v, u = noise(7, block.size), noise(*block.rows)
    close(block.jvp(v), torch.einsum("nrp,mp->mnr", j, v), TIGHT)
    close(block.vjp(u), torch.einsum("nr,nrp->p", u, j), TIGHT)


@blocks
@pytest.mark.parametrize("by_pairs", [True, False, None], ids=["pairs", "matrices", "own choice"])
def test_gram(case: BlockCase, by_pairs: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_pairs is not None:
        monkeypatch.setattr(OuterBlock, "pairs_are_cheaper", lambda self: by_pairs)
    block, j = case.build()
    weights = varied(block.size)
    expected = torch.einsum("nrp,p,nsp->nrs", j, weights, j)
    close(block.gram(weights), expected, TIGHT)
    close(block.gram(weights, diagonal=True), expected.diagonal(dim1=1, dim2=2), TIGHT)


@blocks
@pytest.mark.parametrize("size", [1, 3], ids=["one input at a time", "three"])
def test_square_sum(case: BlockCase, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer, "pieces", lambda n, bytes_each, device: size)
    block, j = case.build()
    close(block.square_sum(), j.square().sum((0, 1)), TIGHT)


@blocks
@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_split(case: BlockCase, size: int) -> None:
    block, j = case.build()
    parts = list(block.split(size))
    assert all(part.rows[0] <= size for part in parts)
    close(torch.cat([part.dense() for part in parts]), j, TIGHT)


@pytest.mark.parametrize("case", [case for case in BLOCKS if not case.pair], ids=lambda case: case.name)
def test_nothing_is_changed(case: BlockCase) -> None:
    """No contraction works on the tensors of a block in place, or on the weights it is given."""
    block: Any = case.make()
    before = {name: value.clone() for name, value in vars(block).items() if isinstance(value, torch.Tensor)}
    weights, v = varied(block.size), noise(2, block.size)
    for done in (block.gram(weights), block.jvp(v), block.vjp(noise(*block.rows)), block.dense()):
        done.add_(1.0)
    block.square_sum()
    assert torch.equal(weights, varied(block.size))
    if not isinstance(block, DenseBlock):  # its dense form is itself
        assert all(torch.equal(getattr(block, name), value) for name, value in before.items())


def test_joined_blocks_are_the_sum() -> None:
    """Of calls with different numbers of positions, too."""
    parts = [outer_block(s, 6, 4) for s in (1, 3, 2)]
    close(OuterBlock.join(parts).dense(), torch.stack([of_outer(part) for part in parts]).sum(0), TIGHT)
    dense = [DenseBlock(noise(2, 3, 24, seed=k), SHAPE) for k in range(3)]
    close(DenseBlock.join(dense).dense(), torch.stack([part.j for part in dense]).sum(0), TIGHT)
    lookups = [
        LookupBlock(torch.tensor([[0, 2, 2], [5, 1, 0]]), noise(2, 3, 3, 4, seed=k), SHAPE, torch.ones(2, 3))
        for k in range(2)
    ]
    joined = LookupBlock.join(lookups)
    close(joined.dense(), torch.stack([of_lookup(part) for part in lookups]).sum(0), TIGHT)
    close(joined.square_sum(), joined.dense().square().sum((0, 1)), TIGHT)


def test_seeds_that_are_one_tensor_expanded() -> None:
    """As the identity is for all inputs: nothing may write into such tensors or ask for their memory order."""
    a = noise(5, 1, 2, 4)
    g = noise(1, 3, 1, 1, 6).expand(5, 3, 1, 2, 6)
    block = OuterBlock(a, g, SHAPE)
    close(block.dense(), of_outer(block), TIGHT)
    weights = varied(24)
    close(block.gram(weights), torch.einsum("nrp,p,nsp->nrs", block.dense(), weights, block.dense()), TIGHT)


def test_no_seeds() -> None:
    block = outer_block(3, 6, 4)
    none = OuterBlock(block.a, block.g[:, :0], SHAPE)
    assert none.dense().shape == (5, 0, 24)
    assert none.gram(varied(24)).shape == (5, 0, 0)
    assert not none.square_sum().any()


@pytest.mark.parametrize("d", [1, 5, 255, 256, 259, 1030])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gram_of_columns(d: int, dtype: torch.dtype) -> None:
    """Large ones are worked out on one side of the diagonal only."""
    x = noise(2, 3, d).to(dtype)
    before = x.clone()
    close(gram_of_columns(x), x.mT @ x, 1e-12 if dtype == torch.float64 else 1e-5)
    close(gram_of_columns(x[0]), x[0].mT @ x[0], 1e-12 if dtype == torch.float64 else 1e-5)
    assert torch.equal(x, before)
    assert not gram_of_columns(x[:, :0]).any()


def test_factors_of_large_layers() -> None:
    """Both memory orders, with groups: Σ a aᵀ and Σ g gᵀ by definition."""
    for strided in (False, True):
        a, g = noise(3, 2, 5, 300), noise(3, 2, 2, 5, 270)
        if strided:
            a, g = a.mT.contiguous().mT, g.mT.contiguous().mT
        block = OuterBlock(a, g, torch.Size([540, 300]))
        A, G = block.factors("expand")
        close(A, torch.einsum("nksi,nksj->kij", a, a), 1e-12)
        close(G, torch.einsum("nrkso,nrksp->kop", g, g), 1e-12)
        A, G = block.factors("reduce")
        close(A, torch.einsum("nki,nkj->kij", a.mean(2), a.mean(2)), 1e-12)
        close(G, torch.einsum("nrko,nrkp->kop", g.sum(3), g.sum(3)), 1e-12)
