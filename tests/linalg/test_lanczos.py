"""Lanczos, also where the start does not reach all directions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linlap.linalg import lanczos
from tests.checks import close, noise, orthogonal, varied


def of_spectrum(values: Tensor) -> Tensor:
    U = orthogonal(len(values))
    return (U * values) @ U.mT


SPECTRA = {
    "distinct": varied(12, 0.1, 9.0),
    "rank 3 of 12": torch.cat([varied(3, 1.0, 5.0), torch.zeros(9, dtype=torch.float64)]),
    "one value": torch.full((12,), 2.0, dtype=torch.float64),
    "three values": torch.tensor([5.0, 5, 5, 5, 1, 1, 1, 1, 1, 0.2, 0.2, 0.2], dtype=torch.float64),
    "sixteen decades": torch.logspace(0, -16, 12, dtype=torch.float64),
    "huge": 1e12 * varied(12),
    "tiny": 1e-12 * varied(12),
    "zero": torch.zeros(12, dtype=torch.float64),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_as_many_steps_as_dimensions_give_everything(name: str) -> None:
    """A value that repeats can only be found again by starting again."""
    H = of_spectrum(SPECTRA[name])
    values, vectors = lanczos(lambda v: H @ v, noise(12), 12)
    close(values, SPECTRA[name].sort(descending=True).values, 1e-12)
    close(vectors.mT @ vectors, torch.eye(12, dtype=torch.float64), 1e-12)
    close((vectors * values) @ vectors.mT, H, 1e-12)


def test_start_within_an_invariant_subspace() -> None:
    H = of_spectrum(varied(8))
    start = torch.linalg.eigh(H).eigenvectors[:, 3]
    values, _ = lanczos(lambda v: H @ v, start, 8)
    close(values, varied(8).sort(descending=True).values, 1e-11)


def test_no_false_copies_of_found_values() -> None:
    """What plain Lanczos does: a value far above the others is found, lost to rounding, and found again."""
    spectrum = torch.cat([torch.tensor([1e6, 1e5], dtype=torch.float64), varied(58, 0.1, 1.0)])
    H = of_spectrum(spectrum)
    values, vectors = lanczos(lambda v: H @ v, noise(60), 45)
    assert (values > 10).sum() == 2
    close(values[:2], spectrum[:2], 1e-12)
    close(vectors.mT @ vectors, torch.eye(45, dtype=torch.float64), 1e-11)
    assert (values[2:] <= 1.0 + 1e-9).all()


def test_steps_are_no_more_than_dimensions_and_one_product_each() -> None:
    H, calls = of_spectrum(varied(5)), 0

    def product(v: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return H @ v

    values, vectors = lanczos(product, noise(5), 50)
    assert values.shape == (5,)
    assert vectors.shape == (5, 5)
    assert calls == 5
