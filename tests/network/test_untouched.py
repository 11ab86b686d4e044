"""The user's model, data and random numbers stay as they are, also when something goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linlap as ll
from tests.cases import BY_NAME
from tests.checks import close, noise, rest_of, same
from tests.networks.forward import after_fc
from tests.networks.parts import Wired
from tests.truth import truth_of


def marked(name: str) -> nn.Module:
    """A model with all that could be lost: gradients, mixed modes, hooks, buffers, attributes."""
    model = BY_NAME[name].build()
    for k, weight in enumerate(model.parameters()):
        weight.grad = None if k % 2 else torch.full_like(weight, 0.5)
    for k, module in enumerate(model.modules()):
        module.training = bool(k % 2)
    model.register_buffer("seen", torch.zeros(2))
    first = next(iter(model.children()))
    first.register_forward_hook(lambda *_: None)
    first.register_full_backward_hook(lambda *_: None)
    return model


def bad_targets(model: nn.Module, x: Tensor) -> None:
    ll.laplace(model, (x, torch.full((len(x),), 7)), ll.Categorical(), progress=False)


def bad_on_the_way(model: nn.Module, x: Tensor) -> None:
    y = torch.zeros(len(x), dtype=torch.long)
    later = [(x, y), (x.clone().fill_(torch.nan), y)]
    ll.laplace(model, later, ll.Categorical(), progress=False)


def bad_shape(model: nn.Module, x: Tensor) -> None:
    posterior = ll.laplace(model, (x, torch.zeros(len(x), dtype=torch.long)), ll.Categorical(), progress=False)
    posterior.latent(x[:, :-1])


def bad_choice(model: nn.Module, x: Tensor) -> None:
    ll.laplace(model, (x, x), ll.Categorical(), parameters="nowhere", progress=False)


@pytest.mark.parametrize("name", ["mlp_2_hidden", "dropout", "batch_norm_mlp", "spectral_norm"])
@pytest.mark.parametrize("go_wrong", [bad_targets, bad_on_the_way, bad_shape, bad_choice])
def test_after_an_error(name: str, go_wrong: Callable[[nn.Module, Tensor], None]) -> None:
    """Nothing half-done is left: the same model is then fitted rightly."""
    model, x = marked(name), BY_NAME[name].inputs()
    before = rest_of(model)
    with pytest.raises(ll.InputError):
        go_wrong(model, x)
    assert same(rest_of(model), before)
    y = torch.zeros(len(x), dtype=torch.long)
    found = ll.laplace(model, (x, y), ll.Categorical(), progress=False).latent(x).cov
    fresh = ll.laplace(BY_NAME[name].build(), (x, y), ll.Categorical(), progress=False).latent(x).cov
    close(found, fresh, 1e-12)
    assert same(rest_of(model), before)


def test_a_posterior_survives_a_call_that_fails() -> None:
    truth = truth_of("mlp_2_hidden")
    posterior = truth.fit(ll.Kron())
    before = posterior.latent(truth.x).cov
    for x in (truth.x[:, :2], torch.full_like(truth.x, torch.nan), truth.x.float(), truth.x[:0]):
        with pytest.raises(ll.InputError):
            posterior.latent(x)
    assert torch.equal(posterior.latent(truth.x).cov, before)


def test_a_network_that_failed_at_first_is_examined_again() -> None:
    """What a first batch settles is settled by a good one."""
    truth = truth_of("called_and_functional")
    network = ll.Network(truth.model())
    with pytest.raises(ll.InputError):
        network.linearize(truth.x[:, :2])
    with pytest.raises(ll.InputError):
        network.linearize(torch.full_like(truth.x, torch.inf))
    with pytest.warns(ll.LinlapWarning, match="fc.weight"):
        close(network.linearize(truth.x).jacobian.dense(), truth.J)


def test_later_training_does_not_reach_a_posterior() -> None:
    truth = truth_of("batch_norm_mlp")
    model = truth.model()
    posterior = ll.laplace(model, (truth.x, truth.y), truth.likelihood, progress=False)
    before = posterior.latent(truth.x)
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            value.add_(1)
    model.train()
    after = posterior.latent(truth.x)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.cov, after.cov)


def doubling(m: Any, x: Tensor) -> Tensor:
    return after_fc(m, x.mul_(2))


def test_a_model_that_works_in_place_on_its_input() -> None:
    model = Wired(doubling, fc=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()
    plain = Wired(lambda m, x: after_fc(m, 2 * x), fc=model.fc, head=model.head)
    x, y = noise(5, 3), torch.tensor([0, 1, 1, 0, 1])
    given = x.clone()
    found, expected = (ll.laplace(m, (x, y), ll.Categorical(), progress=False) for m in (model, plain))
    close(found.latent(x).cov, expected.latent(x).cov, 1e-12)
    close(ll.BNN(found, samples=3).outputs(x), ll.BNN(expected, samples=3).outputs(x), 1e-12)
    assert torch.equal(x, given)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", ["mlp_2_hidden", "lstm", "attention"])
def test_under_any_gradient_mode(name: str, mode: Any) -> None:
    truth = truth_of(name)
    with mode():
        posterior = truth.fit(ll.Kron(), data=(truth.x.clone(), truth.y.clone()))
        latent = posterior.latent(truth.x.clone())
        posterior.sample_functions(truth.x.clone(), 2)
    close(latent.cov, truth.fit(ll.Kron()).latent(truth.x).cov, 1e-12)
    assert not latent.cov.requires_grad
    assert not latent.mean.requires_grad


def test_fitting_leaves_torchs_generator_alone() -> None:
    truth = truth_of("dropout")
    before = torch.get_rng_state()
    posterior = truth.fit(ll.LowRank(3))
    posterior.latent(truth.x)
    posterior.sample_functions(truth.x, 3)
    posterior.sample(2, torch.Generator().manual_seed(0))
    for predictive in (
        ll.GLM(posterior),
        ll.GLM(posterior, ll.MonteCarlo(10)),
        ll.BNN(posterior, samples=2),
        ll.MAP(posterior),
    ):
        predictive(truth.x)
    assert torch.equal(torch.get_rng_state(), before)
