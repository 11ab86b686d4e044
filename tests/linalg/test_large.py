"""Factors made in place agree with those of the library that holds everything twice."""

from __future__ import annotations

import pytest
import torch

import linlap as ll
from linlap.linalg import large
from tests.checks import close, spd


@pytest.mark.parametrize("size", [1, 7, 16, 33, 64])
def test_equals_the_usual_factor(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_PANEL", 16)
    matrix, done = spd(size), []
    expected = torch.linalg.cholesky(matrix)
    found = large.cholesky_in_place(matrix, step=done.append)
    assert found is matrix
    close(found, expected, 1e-12)
    assert sum(done) == pytest.approx(1.0)


def test_a_singular_matrix_is_given_jitter_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_PANEL", 4)
    matrix = torch.ones(8, 8, dtype=torch.float64)
    with pytest.warns(ll.LinlapWarning, match="kernel was singular; added"):
        factor = large.cholesky_in_place(matrix.clone(), "kernel")
    close(factor @ factor.mT, matrix, 1e-5)
