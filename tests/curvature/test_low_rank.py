"""LowRank between the prior and the full matrix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import linlap as ll
from tests import reference
from tests.cases import NETWORKS, NetworkCase
from tests.checks import close
from tests.truth import truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning", "ignore:There is a performance drop")
SMALL = [case for case in NETWORKS if not case.slow]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_all_directions_are_the_full_matrix(case: NetworkCase) -> None:
    """By forward-mode and backward passes alone: they must mean the same derivative."""
    truth = truth_of(case.name)
    posterior = truth.fit(ll.LowRank(min(len(truth.theta), 60)), 0.7)
    rank = torch.linalg.matrix_rank(truth.H, hermitian=True, rtol=1e-10)
    assert rank <= 60
    Σ = reference.posterior_covariance(truth.H, 0.7)
    close(posterior.latent(truth.x).cov, reference.latent_covariance(truth.J, Σ))
    close(posterior.precision.dense(), reference.posterior_precision(truth.H, 0.7))


def test_default_steps_find_the_strongest_directions() -> None:
    """The decay of a trained network's eigenvalues: they are told apart by few steps more than directions."""
    truth = truth_of("mlp_many_data", "categorical")
    values = torch.linalg.eigvalsh(truth.H).flip(0)
    posterior = truth.fit(ll.LowRank(3))
    found = torch.linalg.eigvalsh(posterior.precision.dense()).flip(0) - 1
    close(found[:3], values[:3], 1e-6)
    assert found[3:].abs().max() < 1e-9


def test_more_directions_are_nearer_and_never_beyond() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    full = truth.fit(ll.Full()).latent(truth.x, diagonal=True).cov
    before = torch.full_like(full, torch.inf)
    for rank in (1, 4, 10, 20):
        now = truth.fit(ll.LowRank(rank, steps=100)).latent(truth.x, diagonal=True).cov
        assert (now <= before + 1e-10).all()
        assert (now >= full - 1e-10).all()
        before = now


@pytest.mark.parametrize(
    ("rank", "steps", "words"),
    [(0, None, "rank=0"), (-1, None, "positive"), (True, None, "rank=True"), (2.5, None, "2.5"), (5, 4, "steps=4")],
)
def test_ranks_that_cannot_be(rank: int, steps: int | None, words: str) -> None:
    with pytest.raises(ll.InputError, match=words):
        ll.LowRank(rank, steps)


def test_certain_predictions_in_float32() -> None:
    """The prior's variance less what the data took away: two large numbers, of which float32 keeps too few digits."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    x, y = torch.randn(1000, 5), torch.randn(1000)
    low = ll.laplace(model, (x, y), ll.Gaussian(0.01), ll.LowRank(200), progress=False)
    truth = ll.laplace(model.double(), (x.double(), y), ll.Gaussian(0.01), ll.Full(), progress=False)
    expected = truth.latent(x[:50].double()).variance
    for found in (low.latent(x[:50]).variance, low.latent(x[:50], joint=True).variance):
        assert found.dtype == torch.float32
        assert ((found - expected).abs() / expected).max() < 0.05
