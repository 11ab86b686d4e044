"""Deep ensembles and temperature scaling: what practitioners reach for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import linlap as ll
from tests.baselines.cases import Picky, classes, tanh_network, weights
from tests.checks import close, noise, rest_of, same


def test_an_ensemble_averages_what_its_members_predict(tmp_path: Path) -> None:
    models = [tanh_network(seed, outputs=2) for seed in range(4)]
    before = [rest_of(model) for model in models]
    options: dict[str, Any] = {"steps": 50, "rate": 0.05, "progress": False}
    posterior = ll.ensemble(models, classes(0), ll.Categorical(), 0.3, **options)
    assert all(same(rest_of(model), old) for model, old in zip(models, before, strict=True))
    members = ll.train_map(models, [classes(0)] * 4, ll.Categorical(), 0.3, **options)
    close(posterior.draws, torch.stack([weights(member) for member in members]))
    x, y = classes(5)
    expected = torch.stack([torch.softmax(member(x), -1) for member in members]).mean(0).detach()
    close(ll.BNN(posterior)(x).probs, expected)
    assert ll.metrics.nll(ll.BNN(posterior)(x), y) < 0.5
    parts = ll.uncertainty(ll.BNN(posterior), x)
    close(parts.total, expected * (1 - expected))
    assert (parts.epistemic > 0).all()
    ll.save(posterior, tmp_path / "ensemble.safetensors")
    again = ll.load(tmp_path / "ensemble.safetensors", models[3])
    close(ll.BNN(again)(x).probs, expected)  # type: ignore[arg-type]


def test_trained_members_are_taken_as_they_are() -> None:
    models = [tanh_network(seed) for seed in range(3)]
    posterior = ll.ensemble(models, None, ll.Bernoulli(), steps=None)
    close(posterior.draws, torch.stack([weights(model) for model in models]))
    close(ll.MAP(posterior)(classes(0)[0]).logits, models[0](classes(0)[0])[:, 0].detach())


def test_networks_that_cannot_run_side_by_side() -> None:
    models = [Picky() for _ in range(3)]
    x = noise(1, 2)
    posterior = ll.ensemble(models, None, ll.Gaussian(), steps=None)
    drawn = torch.stack([torch.stack([f * 2 if f > 0 else f for f in model.layer(x)[0]]) for model in models])
    close(posterior.outputs(x)[:, 0], drawn.detach())


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (tanh_network(0), "pass a list of networks"),
        ([], "pass a list of networks"),
        ([tanh_network(0), "net"], "model is a str"),
        ([tanh_network(0), tanh_network(0, hidden=4)], "models[1] is of another architecture"),
    ],
)
def test_bad_ensembles(models: Any, message: str) -> None:
    with pytest.raises(ll.InputError) as error:
        ll.ensemble(models, classes(0), ll.Bernoulli(), steps=None)
    assert message in str(error.value)


def test_predictives_say_what_they_cannot_take() -> None:
    posterior = ll.ensemble([tanh_network(0)], None, ll.Bernoulli(), steps=None)
    with pytest.raises(ll.InputError, match="a SamplePosterior has no latent; .* ll.BNN"):
        ll.GLM(posterior)  # type: ignore[arg-type]


def held_out(outputs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network far too sure of itself, and labels it often gets wrong."""
    x = noise(200, 2)
    model = tanh_network(0, outputs=outputs)
    model[2].weight.data *= 30
    f = model(x).detach() / 9
    generator = torch.Generator().manual_seed(0)
    if outputs == 1:
        return model, x, torch.bernoulli(torch.sigmoid(f[:, 0]), generator=generator)
    return model, x, torch.multinomial(torch.softmax(f, -1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize(("outputs", "likelihood"), [(1, ll.Bernoulli()), (3, ll.Categorical())], ids=["yes", "class"])
def test_the_temperature_is_the_best_one(outputs: int, likelihood: Any) -> None:
    model, x, y = held_out(outputs)
    before = rest_of(model)
    found = ll.temperature_scaling(model, (x, y), likelihood)
    assert same(rest_of(model), before)
    f = model(x).detach()

    def loss(log_t: float) -> float:
        return -float(likelihood.log_prob(likelihood.prepare(y, f), f / torch.tensor(log_t).exp()).sum())

    best = minimize_scalar(loss, bounds=(-3, 6), method="bounded", options={"xatol": 1e-10})
    assert abs(torch.tensor(found.temperature).log() - best.x) < 1e-5
    assert 5 < found.temperature < 15
    predicted = ll.MAP(found)(x)
    close(predicted.logits.squeeze(), likelihood.observe(f / found.temperature).logits.squeeze())
    assert ll.metrics.nll(predicted, y) < 0.7 * ll.metrics.nll(likelihood.observe(f), y)
    close(ll.uncertainty(ll.MAP(found), x).epistemic, torch.zeros(200, outputs).double())


def test_temperatures_without_a_best_one() -> None:
    model, x, _ = held_out(1)
    right = (model(x)[:, 0] > 0).double().detach()
    with pytest.warns(ll.LinlapWarning, match="every label is the likeliest"):
        assert ll.temperature_scaling(model, (x, right), ll.Bernoulli()).temperature == 1e-3
    with pytest.warns(ll.LinlapWarning, match="say nothing about the labels"):
        assert ll.temperature_scaling(model, (x, 1 - right), ll.Bernoulli()).temperature == 1e3


def test_bad_temperatures() -> None:
    model, x, y = held_out(1)
    with pytest.raises(ll.InputError, match="it is for classes"):
        ll.temperature_scaling(model, (x, y), ll.Gaussian())
    with pytest.raises(ll.InputError, match="neither 0 nor 1"):
        ll.temperature_scaling(model, (x, y + 1), ll.Bernoulli())
    with pytest.raises(ll.InputError, match="has no latent"):
        ll.GLM(ll.temperature_scaling(model, (x, y), ll.Bernoulli()))  # type: ignore[arg-type]
