"""Variational inference over independent weights: closed forms, its noise, its bound, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import linlap as ll
from linlap.baselines.local import local_weights, sampled
from linlap.baselines.mfvi import elbo
from linlap.baselines.stacks import problems_of, stacks_of
from linlap.network import Network
from tests.baselines.cases import classes, tanh_network
from tests.checks import close, noise, rest_of, same


def test_of_a_linear_model_it_is_the_best_diagonal_gaussian() -> None:
    """Mean A⁻¹ Xᵀ y / σ², precisions diag(A) with A = XᵀX / σ² + δ: diagonal of the precision, not of its inverse."""
    x, y = noise(50, 3) @ torch.tensor([[1.0, 0.6, 0], [0, 1, 0], [0, 0, 1]]).double(), noise(50, 1, seed="y")
    falling = [0.03, 0.01, 0.003, 0.0003]
    options: dict[str, Any] = {"steps": 2400, "rate": lambda step: falling[step // 600], "progress": False}
    posterior = ll.mfvi(nn.Linear(3, 1, bias=False).double(), (x, y), ll.Gaussian(0.5), 2.0, **options)
    exact = x.mT @ x / 0.25 + 2.0 * torch.eye(3, dtype=torch.float64)
    distance = posterior.mean - torch.linalg.solve(exact, x.mT @ y / 0.25)[:, 0]
    assert (distance * exact.diagonal().sqrt()).abs().max() < 0.1
    ratio = posterior.precision.dense().diagonal() / exact.diagonal()
    assert (ratio - 1).abs().max() < 0.1
    assert (1 / torch.linalg.inv(exact).diagonal() / exact.diagonal()).min() < 0.8  # which the test could tell apart


def spread(network: Network, scale: float = 0.3) -> dict[str, Tensor]:
    return {name: scale * noise(*p.shape, seed=name).abs() + 0.01 for name, p in network.theta.items()}


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 2),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2, padding=1, groups=2), nn.Flatten()),
    "reflected": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()
    ),
    "transposed": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.ConvTranspose1d(2, 3, 2, stride=2), nn.Flatten()),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=list(LAYERS))
def test_moments_of_local_noise_are_those_of_sampled_weights(build: Callable[[], nn.Module]) -> None:
    """Mean f(x; m), and of each output Σ σ² (∂f/∂θ)²: the layer is linear in its weights."""
    torch.manual_seed(0)
    network = Network(build().double())
    x, copies = noise(1, 6), 40_000
    deviation = spread(network)
    local = local_weights(network, x)
    assert {name.split(".")[-1] for name in local} == {"weight"}
    weights_only = {name: s * (name in local) for name, s in deviation.items()}
    torch.manual_seed(1)
    f = sampled(network, network.theta, weights_only, local, x.expand(copies, 6)).detach()
    plain = network.outputs(x)
    rows = torch.func.jacrev(lambda params: network.outputs_at(params, x)[0])(dict(network.theta))
    variance = sum((rows[name] * weights_only[name]).flatten(1).square().sum(1) for name in local).detach()
    assert ((f.mean(0) - plain[0]).abs() < 5 * (variance / copies).sqrt()).all()
    assert ((f.var(0) / variance - 1).abs() < 5 * (2 / copies) ** 0.5).all()


def test_biases_and_other_weights_are_drawn_once_for_all_inputs() -> None:
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).double())
    local = local_weights(network, noise(2, 3))
    assert local == {"0.weight"}
    quiet = {name: s * (name not in local) for name, s in spread(network).items()}
    first, second = (sampled(network, network.theta, quiet, local, noise(1, 3).expand(2, 3)) for _ in range(2))
    close(first[0], first[1], 1e-12)
    assert (first - second).abs().max() > 1e-3


def test_without_deviation_it_is_the_network() -> None:
    network = Network(
        nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)).double()
    )
    still = {name: torch.zeros_like(p) for name, p in network.theta.items()}
    x = noise(4, 6)
    close(sampled(network, network.theta, still, local_weights(network, x), x), network.outputs(x), 1e-12)


class Peeping(nn.Module):
    """Looks at a layer's weight besides calling the layer, and calls another one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.twice, self.once = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.once(self.twice(self.twice(self.seen(x))).tanh()) + self.seen.weight.sum()
        return f


def test_weights_used_otherwise_are_drawn() -> None:
    assert local_weights(Network(Peeping().double()), noise(2, 3)) == {"once.weight"}


def test_the_bound_is_unbiased() -> None:
    """Against weights drawn whole, and torch's own divergence."""
    torch.manual_seed(0)
    data, prior = classes(0), 0.7
    (stack,) = stacks_of(problems_of(tanh_network(0), data, ll.Bernoulli(), prior), ll.Bernoulli())
    mean, before = stack.theta[0], noise(stack.theta.shape[1]) - 1
    local = local_weights(stack.network, data[0])
    assert len(local) == 2
    objective = elbo(stack, local)
    batch = next(stack.batches(None, 0))
    point = torch.cat([mean, before]).unsqueeze(0)
    with torch.no_grad():
        found = torch.stack([objective(point, batch)[0] for _ in range(1500)])
        q = td.Normal(mean, torch.nn.functional.softplus(before))
        divergence = td.kl_divergence(q, td.Normal(torch.zeros_like(mean), prior**-0.5)).sum()
        draws = q.sample(torch.Size([4000]))
        f = torch.func.vmap(lambda t: stack.network.outputs_at(stack.network.named(t), data[0]))(draws)
        fits = td.Bernoulli(logits=f[..., 0]).log_prob(data[1].double()).sum(-1)
    error = (found.var() / len(found) + fits.var() / len(fits)).sqrt()
    assert abs(float(found.mean() - (fits.mean() - divergence))) < 4.5 * float(error)


@pytest.mark.parametrize("batch_size", [None, 11])
def test_side_by_side_is_one_by_one(batch_size: int | None) -> None:
    models = [tanh_network(seed) for seed in range(3)]
    data, deltas = [classes(seed) for seed in range(3)], [0.1, 1.0, 10.0]
    options: dict[str, Any] = {"steps": 40, "rate": 0.05, "batch_size": batch_size, "seed": 3, "progress": False}
    before = torch.get_rng_state()
    together = ll.mfvi(models, data, ll.Bernoulli(), deltas, **options)
    assert torch.equal(torch.get_rng_state(), before)
    for model, own, delta, found in zip(models, data, deltas, together, strict=True):
        alone = ll.mfvi(model, own, ll.Bernoulli(), delta, **options)
        close(found.mean, alone.mean, 1e-9)
        close(found.precision.variance(), alone.precision.variance(), 1e-9)
        assert found.refinement is not None
        assert alone.refinement is not None
        close(found.refinement.objective, alone.refinement.objective, 1e-9)


@pytest.fixture(scope="module")
def fitted() -> ll.posteriors.WeightPosterior:
    return ll.mfvi(tanh_network(0), classes(0), ll.Bernoulli(), 0.5, steps=400, rate=0.05, progress=False)


def test_it_is_a_posterior_as_any_other(fitted: Any, tmp_path: Path) -> None:
    x, y = classes(9)
    assert fitted.refinement.objective[-50:].mean() > fitted.refinement.objective[:50].mean() + 10
    for predictive in (ll.BNN(fitted), ll.GLM(fitted), ll.MAP(fitted)):
        assert ll.metrics.nll(predictive(x), y) < 0.6
        parts = ll.uncertainty(predictive, x)
        close(parts.total, parts.aleatoric + parts.epistemic)
    close(fitted.network.vector(), fitted.mean)
    f = fitted.network.outputs(classes(0)[0])[:, 0]
    likelihood = td.Bernoulli(logits=f).log_prob(classes(0)[1].double()).sum()
    assert abs(fitted.curvature.totals.log_likelihood - float(likelihood)) < 1e-9
    ll.save(fitted, tmp_path / "q.safetensors")
    again = ll.load(tmp_path / "q.safetensors", tanh_network(1))
    assert isinstance(again, type(fitted))
    close(again.mean, fitted.mean)
    close(again.precision.variance(), fitted.precision.variance())
    assert again.refinement is not None
    close(again.refinement.objective, fitted.refinement.objective)


def test_variance_is_that_of_the_deviations(fitted: Any) -> None:
    """BNN samples at the variances that were found."""
    draws = fitted.sample(4000, torch.Generator().manual_seed(0))
    found = torch.cat([draws[name].flatten(1).var(0) for name in fitted.network.names])
    assert (found / fitted.precision.variance() - 1).abs().max() < 6 * (2 / 4000) ** 0.5


def test_a_prior_narrower_than_what_was_found_is_refused() -> None:
    posterior = ll.mfvi(tanh_network(0), classes(0), ll.Bernoulli(), 4.0, steps=1, progress=False)
    wide = {name: h - 1e7 for name, h in posterior.curvature.values.items()}  # type: ignore[attr-defined]
    with pytest.raises(ll.InputError, match="no positive precision"):
        _ = ll.curvature.DiagonalCurvature(posterior.network.shapes, posterior.curvature.totals, wide).precision(
            posterior.prior
        )


def test_the_model_stays_as_it_is() -> None:
    model = tanh_network(0).train()
    before = rest_of(model)
    ll.mfvi(model, classes(0), ll.Bernoulli(), steps=3, progress=False)
    assert same(rest_of(model), before)


def test_a_seed_gives_the_same_again() -> None:
    one, same_again, other = (
        ll.mfvi(tanh_network(0), classes(0), ll.Bernoulli(), steps=9, seed=seed, progress=False).mean
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same_again)
    assert not torch.equal(one, other)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "steps": ({"steps": 0}, "steps=0"),
    "rate": ({"rate": 0.0}, "rate=0.0"),
    "temperature": ({"prior": ll.Prior(1.0, temperature=0.5)}, "temperature 0.5"),
    "labels": ({"data": (classes(0)[0], classes(0)[1] * 2)}, "neither 0 nor 1"),
    "model": ({"model": ll.Bernoulli()}, "model is a Bernoulli"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=list(BAD))
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": tanh_network(0), "data": classes(0), "likelihood": ll.Bernoulli(), "steps": 3}
    with pytest.raises(ll.InputError) as error:
        ll.mfvi(**(given | change), progress=False)
    assert message in str(error.value)


def test_numbers_that_are_not_finite_end_it() -> None:
    x, y = noise(9, 2), noise(9, 1)
    with pytest.raises(ll.NotFiniteError, match="the network ran to numbers that are not finite"):
        ll.mfvi(nn.Linear(2, 1).double(), (x * 1e200, y), ll.Gaussian(), steps=60, progress=False)
