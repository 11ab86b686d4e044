"""Leaving data out of the linear model: exact where that is; the choice; the default where no prior is given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import linlap as ll
from linlap.leave_one_out import FACTORS, left_out
from linlap.network import Network
from linlap.posteriors.points import root_of
from linlap.types import Gaussian
from tests import reference
from tests.cases import likelihoods_for
from tests.checks import close, noise
from tests.networks.parts import mlp
from tests.truth import truth_of


def others(J: Tensor, lam: Tensor, r: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """What f(x_n) moves by and its covariance, one datum after the other, by dense matrices without it."""
    eye = torch.eye(J.shape[-1], dtype=J.dtype)
    moves, covs = [], []
    for n in range(len(J)):
        rest = [i for i in range(len(J)) if i != n]
        covariance = torch.linalg.inv(reference.full_ggn(J[rest], lam[rest]) + prior * eye)
        moves.append(-J[n] @ covariance @ J[n].T @ r[n])
        covs.append(J[n] @ covariance @ J[n].T)
    return torch.stack(moves), torch.stack(covs)


@pytest.mark.parametrize("law", [case.name for case in likelihoods_for(3)])
def test_the_law_without_a_datum(law: str) -> None:
    truth = truth_of("mlp_many_data", law)
    posterior = truth.fit(ll.Full(), 0.7)
    at = posterior.latent(truth.x)
    y = truth.likelihood.prepare(truth.y, at.mean)
    found = left_out(truth.likelihood, root_of(truth.likelihood, True), y, at.mean, at.cov)
    assert found is not None
    r = reference.residual(truth.law.oracle, truth.y, truth.f, **truth.options)
    moves, covs = others(truth.J, truth.lam, r, 0.7)
    close(found.mean, truth.f + moves)
    close(found.cov, covs)


def test_at_a_mode_of_a_linear_model_it_is_the_fit_to_the_others() -> None:
    x, y, δ, σ = noise(12, 3, seed="x"), noise(12, 2, seed="y"), 0.8, 0.5
    model = nn.Linear(3, 2).double()
    features = torch.cat([x, torch.ones(12, 1)], 1).double()

    def ridge(rows: list[int]) -> Tensor:
        A = features[rows].T @ features[rows] + δ * σ**2 * torch.eye(4, dtype=torch.float64)
        return torch.linalg.solve(A, features[rows].T @ y[rows])

    solution = ridge(list(range(12)))
    with torch.no_grad():
        model.weight.copy_(solution[:3].T)
        model.bias.copy_(solution[3])
    likelihood = ll.Gaussian(σ)
    at = ll.laplace(model, (x, y), likelihood, ll.Full(), δ).latent(x)
    found = left_out(likelihood, root_of(likelihood, True), y, at.mean, at.cov)
    assert found is not None
    alone = torch.stack([features[n] @ ridge([i for i in range(12) if i != n]) for n in range(12)])
    close(found.mean, alone)


def test_a_covariance_that_leaves_no_room_for_a_datum() -> None:
    """Under an approximate structure the data can seem to say more than they have to say."""
    f, y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    likelihood = ll.Gaussian(1.0)
    root = root_of(likelihood, True)
    assert left_out(likelihood, root, y, f, torch.full((1, 1, 1), 1.1, dtype=torch.float64)) is None
    law = left_out(likelihood, root, y, f, torch.full((1, 1, 1), 0.5, dtype=torch.float64))
    assert law is not None
    close(law.cov, torch.ones(1, 1, 1, dtype=torch.float64))
    close(law.mean, -torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.1, 10.0])
def test_the_choice(tolerance: float) -> None:
    """The smallest multiple of the evidence's precision that is within the tolerance of the best."""
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(ll.Full(), 1.0), (truth.x, truth.y)
    least: Any = ll.select_prior(posterior, ll.Evidence())
    r = reference.residual("categorical", truth.y, truth.f)
    losses = []
    for factor in FACTORS:
        moves, covs = others(truth.J, truth.lam, r, float(least.prior.precision) * factor)
        law = Gaussian(truth.f + moves, covs)
        losses.append(ll.metrics.nll(ll.MonteCarlo(200).predict(truth.likelihood, law), truth.y))
    first = next(factor for factor, loss in zip(FACTORS, losses, strict=True) if loss <= min(losses) + tolerance)
    found: Any = ll.select_prior(posterior, ll.LeaveOneOut(data, tolerance=tolerance))
    assert float(found.prior.precision) == pytest.approx(float(least.prior.precision) * first, rel=1e-6)
    assert (first == 1.0) == (tolerance == 10.0)


@pytest.mark.parametrize(("structure", "precisely"), [(ll.Full(), True), (ll.Diagonal(), False)])
def test_a_gaussian_likelihood(structure: Any, precisely: bool) -> None:
    """The evidence's own precision; or the least under which no datum says more than there is to say."""
    x, y = noise(6, 2, seed="x"), noise(6, 1, seed="y")
    model = mlp(2, 12, 1).double()
    likelihood = ll.Gaussian(0.05)
    posterior = ll.laplace(model, (x, y), likelihood, structure, 1.0, progress=False)
    least: Any = ll.select_prior(posterior, ll.Evidence())
    δ = float(least.prior.precision)
    leverages = [least.with_prior(δ * factor).latent(x).cov.max() / 0.05**2 for factor in FACTORS]
    first = next(factor for factor, most in zip(FACTORS, leverages, strict=True) if most < 1)
    assert (first == 1.0) == precisely
    found: Any = ll.select_prior(posterior, ll.LeaveOneOut((x, y)))
    assert float(found.prior.precision) == pytest.approx(δ * first, rel=1e-6)


@pytest.mark.parametrize("law", ["categorical", "poisson"])
@pytest.mark.parametrize("structure", [ll.Full(), ll.Kron(), ll.Diagonal(), ll.LowRank(4)])
def test_the_default_of_laplace(law: str, structure: Any) -> None:
    truth = truth_of("mlp_many_data", law)
    default = truth.fit(structure, None)
    asked: Any = ll.select_prior(truth.fit(structure, 1.0), ll.LeaveOneOut((truth.x, truth.y)))
    assert float(default.prior.precision) == float(asked.prior.precision)
    assert default.prior.is_uniform


def test_data_in_every_form_and_batch_size() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior = truth.fit(ll.Full(), 1.0)
    loader = DataLoader(TensorDataset(truth.x, truth.y), batch_size=3)
    found = [
        ll.select_prior(posterior, method).prior.precision
        for method in (ll.LeaveOneOut((truth.x, truth.y)), ll.LeaveOneOut(loader), ll.LeaveOneOut(list(loader)))
    ]
    assert found[1:] == found[:-1]


def test_how_many_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly spread, whatever the batches; one pass."""
    truth = truth_of("mlp_many_data", "categorical")
    posterior = truth.fit(ll.Full(), 1.0)
    seen: list[Tensor] = []
    original = Network.linearize

    def watched(self: Network, x: Any, *args: Any, **options: Any) -> Any:
        seen.append(x)
        return original(self, x, *args, **options)

    monkeypatch.setattr(Network, "linearize", watched)
    ll.select_prior(posterior, ll.LeaveOneOut((truth.x, truth.y), most=4, batch_size=5))
    close(torch.cat(seen), truth.x[::4], 0.0)


def test_temperatures_stay() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    cool: Any = ll.select_prior(truth.fit(ll.Full(), ll.Prior(1.0, 0.2)), ll.LeaveOneOut((truth.x, truth.y)))
    assert cool.prior.temperature == 0.2


def test_processes_choose_what_weight_space_does() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    data = (truth.x, truth.y)
    process = ll.gaussian_process(truth.model(), data, truth.likelihood, None, "coupled", progress=False)
    found: Any = ll.select_prior(process, ll.LeaveOneOut(data))
    weights: Any = ll.select_prior(truth.fit(ll.Full(), 1.0), ll.LeaveOneOut(data))
    assert float(found.prior.precision) == pytest.approx(float(weights.prior.precision), rel=1e-5)
    alone = ll.gaussian_process(truth.model(), data, truth.likelihood, progress=False)
    assert math.isfinite(float(ll.select_prior(alone, ll.LeaveOneOut(data)).prior.precision))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"most": 0}, "most=0"), ({"most": 2.5}, "most=2.5"), ({"tolerance": -1.0}, "tolerance=-1.0")],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ll.InputError, match=words):
        ll.LeaveOneOut((torch.zeros(2, 3), torch.zeros(2)), **options)


def test_bad_data() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    with pytest.raises(ll.InputError, match="holds no data"):
        ll.select_prior(truth.fit(ll.Full(), 1.0), ll.LeaveOneOut([]))
