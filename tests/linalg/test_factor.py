"""Factorisations that have to survive what is singular, or says clearly that it is not a covariance."""

from __future__ import annotations

import warnings

import pytest
import torch

import linlap as ll
from linlap.linalg import draw, psd_sqrt, rounded, safe_cholesky, safe_eigh, symmetric
from linlap.types import Gaussian
from tests.checks import close, noise, orthogonal, spd

NAN = float("nan")


SIZES = [5, 128, 150, 320, 321]  # those between are factored by panels


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_cholesky_of_what_has_one_is_exact_and_silent(batch: tuple[int, ...], size: int) -> None:
    P = spd(size, *batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        L = safe_cholesky(P)
    close(L @ L.mT, P, 1e-13)
    assert not L.triu(1).any()


@pytest.mark.parametrize("size", SIZES)
def test_cholesky_says_how_much_it_added(size: int) -> None:
    root = noise(size, 2)
    singular = root @ root.mT
    with pytest.warns(ll.LinlapWarning, match="precision was singular; added .*e-"):
        L = safe_cholesky(singular, "precision")
    close(L @ L.mT, singular, 1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_cholesky_of_a_batch_mends_only_what_needs_it(size: int) -> None:
    root = noise(size, 2)
    batch = torch.stack([spd(size), root @ root.mT, 1e6 * spd(size, seed=1)])
    with pytest.warns(ll.LinlapWarning, match="added .*e-"):
        L = safe_cholesky(batch)
    for k in (0, 2):
        close(L[k] @ L[k].mT, batch[k], 1e-14)
        close(L[k], torch.linalg.cholesky(batch[k]), 1e-14)
    close(L[1] @ L[1].mT, batch[1], 1e-6)


def test_cholesky_refuses_what_is_no_covariance() -> None:
    with pytest.raises(ll.NotFiniteError, match=r"precision of shape \(2, 2\) is not positive definite.*larger prior"):
        safe_cholesky(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "precision")
    with pytest.raises(ll.NotFiniteError, match="NaN or infinite"):
        safe_cholesky(torch.tensor([[1.0, NAN], [NAN, 1.0]]))


def test_eigh_is_in_float64_and_never_negative() -> None:
    root = noise(6, 2)
    values, vectors = safe_eigh((root @ root.mT).float())
    assert values.dtype == vectors.dtype == torch.float64
    assert (values >= 0).all()
    close((vectors * values) @ vectors.mT, root @ root.mT, 1e-6)
    with pytest.raises(ll.NotFiniteError, match="factor G"):
        safe_eigh(torch.full((2, 2), float("inf")), "Kronecker factor G")


def test_eigh_reads_a_matrix_as_symmetric() -> None:
    """Sums of products differ from their transposes by rounding."""
    P, tilt = spd(4), 1e-13 * noise(4, 4)
    values, vectors = safe_eigh(P + tilt)
    close((vectors * values) @ vectors.mT, symmetric(P + tilt), 1e-14)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("true_rank", [0, 1, 20])
def test_eigh_of_what_has_low_rank(batch: tuple[int, ...], true_rank: int) -> None:
    """From its range alone: eigenvalues over eight decades, and as many vectors as rows."""
    root = noise(*batch, 150, 20)[..., :true_rank] * 10 ** torch.linspace(0, -4, true_rank, dtype=torch.float64)
    matrix = root @ root.mT
    values, vectors = safe_eigh(matrix, rank=20)
    close((vectors * values.unsqueeze(-2)) @ vectors.mT, matrix, 1e-13)
    close(vectors.mT @ vectors, torch.eye(150, dtype=torch.float64).expand(*batch, -1, -1), 1e-13)
    close(values, torch.linalg.eigvalsh(matrix).clamp_min(0), 1e-13)
    assert (values.diff() >= 0).all()


@pytest.mark.parametrize("rank", [0, 1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_psd_sqrt_whatever_the_rank(rank: int, dtype: torch.dtype) -> None:
    roots = noise(5, 4, rank)
    cov = (roots @ roots.mT).to(dtype)
    S = psd_sqrt(cov)
    assert S.dtype == dtype
    close(S @ S.mT, cov, 1e-12 if dtype == torch.float64 else 1e-5)


def test_psd_sqrt_of_a_batch_of_some_singular() -> None:
    cov = torch.stack([spd(3), torch.zeros(3, 3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)])
    before = cov.clone()
    S = psd_sqrt(cov)
    close(S @ S.mT, cov, 1e-12)
    assert torch.equal(cov, before)


def test_draws_have_the_law() -> None:
    """Diagonal, full and joint: within a few standard errors of each entry."""
    n, c, k = 3, 2, 40_000
    mean, joint = noise(n, c), spd(n * c)
    full = torch.stack([joint.reshape(n, c, n, c)[i, :, i] for i in range(n)])
    for cov in (full.diagonal(dim1=1, dim2=2), full, joint.reshape(n, c, n, c)):
        samples = draw(Gaussian(mean, cov), k, torch.Generator().manual_seed(0))
        assert samples.shape == (k, n, c)
        blocks = cov if cov.ndim == 3 else cov.diag_embed()
        expected = joint if cov.ndim == 4 else torch.block_diag(*blocks)
        found = torch.cov(samples.reshape(k, -1).T)
        spread = (expected.diagonal()[:, None] * expected.diagonal()).sqrt()
        assert ((found - expected).abs() <= 6 * spread / k**0.5).all()
        assert ((samples.mean(0) - mean).abs() <= 6 * (expected.diagonal() / k).sqrt().reshape(n, c)).all()


def test_the_generator_decides_the_draw() -> None:
    law = Gaussian(noise(3, 2), spd(2, 3))
    one, same, other = (draw(law, 4, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    before = torch.get_rng_state()
    draw(law, 4, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_orthogonal_is_what_tests_rely_on() -> None:
    Q = orthogonal(5, 2)
    close(Q @ Q.mT, torch.eye(5, dtype=torch.float64).expand(2, 5, 5), 1e-13)


def test_rounded_vectors_have_no_numbers_that_underflow() -> None:
    """Products of what is left are far from the smallest numbers, and the basis is as orthonormal as it was."""
    vectors = torch.eye(4, dtype=torch.float64) + 1e-30
    single = rounded(vectors, torch.float32)
    assert torch.equal(single, torch.eye(4))
    basis = orthogonal(6)
    close(rounded(basis, torch.float32) @ rounded(basis, torch.float32).mT, torch.eye(6), 1e-6)
    close(rounded(basis, torch.float64), basis, 1e-16)
