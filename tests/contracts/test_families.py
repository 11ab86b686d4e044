"""Covariances under several precisions at once are those under each by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from linlap import linalg
from linlap.jacobian import Block, OuterBlock, covariance, families, family, many, outer
from linlap.linalg import SPD
from tests.cases import OPERATORS
from tests.checks import close, noise, spd, varied
from tests.operators import BLOCKS, WEIGHTS, BlockCase, OperatorCase

PAIRS = [(operator, met) for operator in OPERATORS for met in BLOCKS if operator.meets(met)]
pairs = pytest.mark.parametrize(
    ("operator", "met"), PAIRS, ids=[f"{operator.name}-{met.name}" for operator, met in PAIRS]
)
OUTER = [(operator, met) for operator, met in PAIRS if met.name.startswith(("outer", "layer"))]
TIGHT = 1e-11


def shifted(operator: SPD, shift: float) -> SPD:
    """The operator under another prior: with the same eigenvectors where it has any."""
    if isinstance(operator, linalg.BlockDiagonal):
        return linalg.BlockDiagonal({names: shifted(part, shift) for names, part in operator.blocks.items()})
    if isinstance(operator, linalg.KroneckerLayer):
        weight = replace(operator.weight, values=operator.weight.values + shift)
        return linalg.KroneckerLayer(weight, operator.bias + 2 * shift)
    if isinstance(operator, linalg.Kronecker | linalg.Spectral | linalg.Diagonal):
        return replace(operator, values=operator.values + shift)
    if isinstance(operator, linalg.LowRank):
        return linalg.LowRank(operator.vectors, operator.values / shift, torch.full_like(operator.scale, shift))
    return linalg.Dense.of(operator.dense() + shift * torch.eye(operator.dim, dtype=torch.float64))


def several(operator: SPD) -> list[SPD]:
    return [shifted(operator, shift) for shift in (0.1, 3.0, 0.7, 20.0)]


def check(operators: list[SPD], met: BlockCase) -> None:
    J, members = met.make(), family(iter(operators), torch.float64)
    for diagonal in (False, True):
        expected = torch.stack([covariance(operator, J, diagonal) for operator in operators])
        close(members.covariances(met.make(), diagonal), expected, TIGHT)


@pairs
def test_each_is_as_by_itself(operator: OperatorCase, met: BlockCase) -> None:
    check(several(operator.make()), met)


@pairs
def test_members_with_other_bases(operator: OperatorCase, met: BlockCase) -> None:
    """Two kinds in turns, and one that is like no other: the order is kept."""
    first, second = several(operator.make()), several(operator.make())
    dense = operator.make().dense()
    if isinstance(first[0], linalg.BlockDiagonal | linalg.KroneckerLayer):
        check([first[0], second[1], first[2]], met)
    else:
        check([first[0], second[1], linalg.Dense.of(dense), first[2], second[0]], met)


@pytest.mark.parametrize(("operator", "met"), OUTER, ids=[f"{op.name}-{met.name}" for op, met in OUTER])
@pytest.mark.parametrize("by_positions", [True, False], ids=["positions", "formed"])
def test_both_orders(
    operator: OperatorCase, met: BlockCase, by_positions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the counts say takes fewer multiplications, and with as little memory as can be."""
    for module in (many, families):
        monkeypatch.setattr(module, "by_positions", lambda block, priors, diagonal: by_positions)
    monkeypatch.setattr(OuterBlock, "pairs_are_cheaper", lambda self: by_positions)
    monkeypatch.setattr(outer, "pieces", lambda n, bytes_each, device: 1)
    monkeypatch.setattr(many, "pieces", lambda n, bytes_each, device: max(1, min(n, 2)))
    monkeypatch.setattr(many, "_SCALES", 1)
    check(several(operator.make()), met)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("seeds", [1, 4])
def test_grams_of_a_formed_jacobian(size: int, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "pieces", lambda n, bytes_each, device: min(n, size))
    j, weights = noise(3, seeds, WEIGHTS), torch.stack([varied(WEIGHTS), varied(WEIGHTS) ** 2, torch.zeros(WEIGHTS)])
    expected = torch.einsum("ncp,mp,ndp->mncd", j, weights.double(), j)
    close(many.grams(j, weights.double()), expected, TIGHT)
    close(many.grams(j, weights.double(), diagonal=True), expected.diagonal(dim1=2, dim2=3), TIGHT)


def test_float32_keeps_low_rank_digits() -> None:
    operator = linalg.LowRank(
        torch.linalg.qr(noise(WEIGHTS, 4)).Q, 1e6 * varied(4), torch.ones(WEIGHTS, dtype=torch.float64)
    )
    J = block_of_float32()
    expected = covariance(operator, J)
    close(family([operator, operator], torch.float32).covariances(J)[1], expected, 1e-6)


def block_of_float32() -> Block:
    return next(met for met in BLOCKS if met.name == "dense").make().to(torch.float32)


def test_dense_operators_need_no_eigenvectors() -> None:
    check([linalg.Dense.of(spd(WEIGHTS, seed=seed)) for seed in range(3)], BLOCKS[0])
