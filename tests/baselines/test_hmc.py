"""NUTS over all weights: against a Gaussian in closed form and a posterior on a grid; what it says of itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import linlap as ll
from linlap.posteriors import SamplePosterior
from tests.checks import close, noise, rest_of, same

pytest.importorskip("pyro", reason="the extra hmc is not installed")
X = torch.tensor([[-6.0], [-4.0], [-2.0], [2.0], [4.0], [6.0]], dtype=torch.float64)
Y = (X[:, 0] > 0).double()


class Curve(nn.Module):
    """5 tanh(w x + b)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return 5 * torch.tanh(self.layer(x))


@pytest.fixture(scope="module")
def drawn() -> SamplePosterior:
    return ll.hmc(Curve(), (X, Y), ll.Bernoulli(), 1.0, samples=400, chains=2, warmup=100, progress=False)


def grid() -> tuple[Tensor, Tensor, Tensor]:
    """w, b and probabilities over a dense grid."""
    line = torch.linspace(-6, 6, 601, dtype=torch.float64)
    w, b = (part.flatten() for part in torch.meshgrid(line, line, indexing="ij"))
    density = -0.5 * (w.square() + b.square())
    for x, y in zip(X[:, 0], Y, strict=True):
        density = density + logsigmoid((2 * y - 1) * 5 * torch.tanh(w * x + b))
    return w, b, torch.softmax(density, 0)


def test_moments_are_those_on_a_grid(drawn: SamplePosterior) -> None:
    w, b, p = grid()
    assert drawn.diagnostics is not None
    for column, values in enumerate((w, b)):
        for power in (1, 2):
            found, exact = drawn.draws[:, column] ** power, (p * values**power).sum()
            error = (found.var() / drawn.diagnostics.effective[column].clamp_max(len(found) / 3)).sqrt()
            assert abs(found.mean() - exact) < 5 * error
    assert (drawn.draws[:, 0] < 0).double().mean() < 0.01


def test_the_predictive_averages_the_network_over_the_draws(drawn: SamplePosterior) -> None:
    w, b, p = grid()
    x = torch.tensor([[-3.0], [0.5], [3.0]], dtype=torch.float64)
    probabilities = ll.BNN(drawn)(x).probs
    by_hand = torch.sigmoid(5 * torch.tanh(drawn.draws[:, :1] * x[:, 0] + drawn.draws[:, 1:])).mean(0)
    close(probabilities, by_hand)
    exact = torch.stack([(p * torch.sigmoid(5 * torch.tanh(w * at + b))).sum() for at in x[:, 0]])
    assert (probabilities - exact).abs().max() < 0.05
    fewer = drawn.outputs(x, 7)
    assert fewer.shape == (7, 3, 1)
    close(fewer[0], drawn.outputs(x)[0])
    close(fewer[-1], drawn.outputs(x)[-1])
    assert ll.BNN(drawn, 7).outputs(x).shape == (7, 3, 1)
    assert (ll.uncertainty(ll.BNN(drawn), x).epistemic > 0).all()
    assert ll.metrics.nll(ll.BNN(drawn)(X), Y) < 0.3


def test_diagnostics(drawn: SamplePosterior) -> None:
    told = drawn.diagnostics
    assert told is not None
    assert told.r_hat.shape == (2,)
    assert told.r_hat_outputs.shape == (6, 1)
    assert (told.r_hat < 1.1).all()
    assert (told.effective > 50).all()
    assert told.divergences == 0
    assert ((told.acceptance > 0.5) & (told.acceptance <= 1)).all()
    assert "R-hat up to 1.0" in repr(drawn)
    split = drawn.draws.unflatten(0, (4, 200))
    within, between = split.var(1).mean(0), split.mean(1).var(0)
    close(told.r_hat, (199 / 200 + between / within).sqrt(), 1e-6)


def test_it_is_saved_and_loaded(drawn: SamplePosterior, tmp_path: Path) -> None:
    ll.save(drawn, tmp_path / "draws.safetensors")
    again = ll.load(tmp_path / "draws.safetensors", Curve())
    assert isinstance(again, SamplePosterior)
    close(again.draws, drawn.draws)
    assert repr(again) == repr(drawn)


def test_draws_are_taken_with_replacement(drawn: SamplePosterior) -> None:
    sample = drawn.sample(5000, torch.Generator().manual_seed(0))
    flat = torch.cat([part.flatten(1) for part in sample.values()], 1)
    assert (flat.mean(0) - drawn.mean).abs().max() < 5 * (drawn.draws.var(0).max() / 5000).sqrt()
    close(torch.cat([v.flatten() for v in drawn.variance().values()]), drawn.draws.var(0, correction=0))


def test_a_gaussian_posterior() -> None:
    """Linear regression, with minibatches of a loader's form and a prior that differs between weights."""
    x, y = noise(20, 2), noise(20, 1, seed="y")
    model = nn.Linear(2, 1).double()
    before = rest_of(model)
    prior = ll.Prior({"weight": 2.0, "bias": 0.5})
    posterior = ll.hmc(
        model,
        [(x[:12], y[:12]), (x[12:], y[12:])],
        ll.Gaussian(0.8),
        prior,
        samples=500,
        chains=2,
        warmup=150,
        progress=False,
    )
    assert same(rest_of(model), before)
    design = torch.cat([x, torch.ones(20, 1)], 1)
    precision = design.mT @ design / 0.64 + torch.diag(torch.tensor([2.0, 2.0, 0.5]).double())
    exact, cov = torch.linalg.solve(precision, design.mT @ y / 0.64)[:, 0], torch.linalg.inv(precision)
    assert ((posterior.mean - exact).abs() < 6 * (cov.diagonal() / 200).sqrt()).all()
    assert (posterior.draws.T.cov() - cov).abs().max() < 0.35 * cov.diagonal().max()


def test_a_seed_gives_the_same_again_and_chains_differ() -> None:
    model = Curve()

    def run(seed: int) -> Tensor:
        options: dict[str, Any] = {"samples": 5, "chains": 2, "warmup": 5, "seed": seed, "progress": False}
        return ll.hmc(model, (X, Y), ll.Bernoulli(), **options).draws

    before = torch.get_rng_state()
    first = run(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert torch.equal(run(1), first)
    assert not torch.equal(run(2), first)
    assert not torch.equal(first[:5], first[5:])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "samples": ({"samples": 3}, "samples=3"),
    "chains": ({"chains": 0}, "chains=0"),
    "warmup": ({"warmup": 0.5}, "warmup=0.5"),
    "seed": ({"seed": None}, "seed=None"),
    "models": ({"model": [Curve()]}, "one network at a time"),
    "temperature": ({"prior": ll.Prior(1.0, 2.0)}, "temperature 2"),
    "data": ({"data": (X.float(), Y)}, "inputs are torch.float32"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=list(BAD))
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ll.InputError) as error:
        ll.hmc(**({"model": Curve(), "data": (X, Y), "likelihood": ll.Bernoulli()} | change), progress=False)
    assert message in str(error.value)


def test_without_pyro_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyro.infer.mcmc", None)
    with pytest.raises(ll.LinlapError, match="pip install 'linlap\\[hmc\\]'"):
        ll.hmc(Curve(), (X, Y), ll.Bernoulli(), progress=False)
