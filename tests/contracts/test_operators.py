"""Every operator against its own dense matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from linlap.linalg import SPD
from tests.cases import OPERATORS
from tests.checks import close, noise
from tests.operators import OperatorCase

operators = pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
TIGHT = 1e-11


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def inverse_by_samples(operator: SPD) -> Tensor:
    """R Rᵀ, R read off by what it does to the unit vectors."""
    columns = operator.inverse_sqrt(torch.eye(operator.dim, dtype=torch.float64))
    return columns.mT @ columns


@operators
def test_dense_is_symmetric_and_positive(case: OperatorCase) -> None:
    operator = case.make()
    P = operator.dense()
    assert P.shape == (operator.dim, operator.dim)
    close(P, P.mT, TIGHT)
    assert torch.linalg.eigvalsh(P).min() > 0


@operators
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_matmul_and_solve(case: OperatorCase, shape: tuple[int, ...]) -> None:
    operator = case.make()
    P, v = operator.dense(), noise(*shape, operator.dim)
    close(operator.matmul(v), v @ P, TIGHT)
    close(operator.solve(v), v @ torch.linalg.inv(P), TIGHT)
    close(operator.solve(operator.matmul(v)), v, TIGHT)
    assert operator.inverse_sqrt(v).shape == v.shape


@operators
def test_logdet_and_variance(case: OperatorCase) -> None:
    operator = case.make()
    P = operator.dense()
    close(operator.logdet(), torch.linalg.slogdet(P).logabsdet, TIGHT)
    close(operator.variance(), torch.linalg.inv(P).diagonal(), TIGHT)


@operators
def test_samples_have_the_inverse_as_their_covariance(case: OperatorCase) -> None:
    operator = case.make()
    close(inverse_by_samples(operator), torch.linalg.inv(operator.dense()), TIGHT)


@operators
def test_another_dtype(case: OperatorCase) -> None:
    operator = case.make()
    single = operator.to(torch.float32)
    assert type(single) is type(operator)
    assert {t.dtype for t in tensors_in(single) if t.is_floating_point()} == {torch.float32}
    v = noise(2, operator.dim)
    for action in ("matmul", "solve", "inverse_sqrt"):
        found = getattr(single, action)(v.float())
        assert found.dtype == torch.float32
        close(found, getattr(operator, action)(v), 1e-4)
    for value in ("logdet", "variance", "dense"):
        assert getattr(single, value)().dtype == torch.float32
        close(getattr(single, value)(), getattr(operator, value)(), 1e-4)
    assert {t.dtype for t in tensors_in(operator) if t.is_floating_point()} == {torch.float64}
