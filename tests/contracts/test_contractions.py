"""Covariances of outputs, J P⁻¹ Jᵀ, for every kind of operator and every kind of block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linlap.jacobian import OuterBlock, covariance, outer, whitened
from tests.cases import OPERATORS
from tests.checks import close
from tests.operators import BLOCKS, BlockCase, OperatorCase

PAIRS = [(operator, block) for operator in OPERATORS for block in BLOCKS if operator.meets(block)]
pairs = pytest.mark.parametrize(
    ("operator", "block"), PAIRS, ids=[f"{operator.name}-{block.name}" for operator, block in PAIRS]
)
TIGHT = 1e-11


def all_covariances(operator: OperatorCase, block: BlockCase) -> tuple[Tensor, Tensor]:
    """J P⁻¹ Jᵀ over the rows of all inputs `[n, r, n, r]`, and of each input alone `[n, r, r]`."""
    _, j = block.build()
    rows = j.flatten(0, 1)
    joint = (rows @ torch.linalg.solve(operator.make().dense(), rows.mT)).reshape(*j.shape[:2], *j.shape[:2])
    return joint, torch.stack([joint[n, :, n] for n in range(len(j))])


@pairs
def test_covariance(operator: OperatorCase, block: BlockCase) -> None:
    expected = all_covariances(operator, block)[1]
    P, J = operator.make(), block.make()
    close(covariance(P, J), expected, TIGHT)
    close(covariance(P, J, diagonal=True), expected.diagonal(dim1=1, dim2=2), TIGHT)


@pairs
def test_joint_features(operator: OperatorCase, block: BlockCase) -> None:
    expected = all_covariances(operator, block)[0]
    features = whitened(operator.make(), block.make())
    assert features.shape[:2] == expected.shape[:2]
    close(torch.einsum("nrq,msq->nrms", features, features), expected, TIGHT)


@pytest.mark.parametrize(
    ("operator", "block"),
    [(operator, block) for operator, block in PAIRS if block.name.startswith("outer")],
    ids=lambda case: case.name,
)
@pytest.mark.parametrize("by_pairs", [True, False], ids=["pairs", "matrices"])
def test_both_orders_of_contraction(
    operator: OperatorCase, block: BlockCase, by_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the counts say is cheaper; and with matrices formed for one input at a time."""
    expected = all_covariances(operator, block)[1]
    monkeypatch.setattr(OuterBlock, "pairs_are_cheaper", lambda self: by_pairs)
    monkeypatch.setattr(outer, "pieces", lambda n, bytes_each, device: 1)
    P, J = operator.make(), block.make()
    close(covariance(P, J), expected, TIGHT)
    close(covariance(P, J, diagonal=True), expected.diagonal(dim1=1, dim2=2), TIGHT)
