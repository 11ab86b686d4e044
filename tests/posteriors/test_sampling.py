"""Samples of weights and of functions: their law, and who decides what is drawn."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.posteriors import WeightPosterior
from tests import reference
from tests.cases import STRUCTURES, STRUCTURES_BY_NAME
from tests.checks import close
from tests.truth import Truth, truth_of

structures = pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
TEMPERATURE = 0.5


def many() -> Truth:
    return truth_of("mlp_many_data", "categorical")


@cache
def posterior_of(structure: str, network: str = "mlp_many_data") -> WeightPosterior:
    prior = ll.Prior(0.7, TEMPERATURE)
    return truth_of(network, "categorical").fit(STRUCTURES_BY_NAME[structure].structure, prior)


def flat(samples: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten(1) for value in samples.values()], 1)


def has_law(samples: Tensor, mean: Tensor, Σ: Tensor) -> None:
    """Mean and covariance within what their standard errors allow, for so many entries."""
    k = len(samples)
    variance = Σ.diagonal()
    assert ((samples.mean(0) - mean).abs() <= 5.5 * (variance / k).sqrt()).all()
    found = torch.cov(samples.T)
    error = ((variance[:, None] * variance + Σ.square()) / k).sqrt()
    assert ((found - Σ).abs() <= 6.5 * error).all()


@structures
def test_weights(case: Any) -> None:
    truth, posterior = many(), posterior_of(case.name)
    samples = posterior.sample(20_000, torch.Generator().manual_seed(0))
    assert list(samples) == truth.names
    assert all(samples[name].shape[1:] == posterior.network.shapes[name] for name in truth.names)
    has_law(flat(samples), truth.theta, TEMPERATURE * torch.linalg.inv(case.precision(truth, 0.7)))


@structures
def test_functions_have_the_joint_law(case: Any) -> None:
    """Exactly, as a linear map of the noise: the law of a few draws is that of J R, and R is tested apart."""
    truth, posterior = many(), posterior_of(case.name)
    Σ = TEMPERATURE * torch.linalg.inv(case.precision(truth, 0.7))
    x = truth.x[:4]
    samples = posterior.sample_functions(x, 5_000)
    assert samples.shape == (5_000, 4, 3)
    joint = reference.joint_latent_covariance(truth.J[:4], Σ).reshape(12, 12)
    has_law(samples.flatten(1), truth.f[:4].reshape(-1), joint)
    close(posterior.latent(x, joint=True).cov.reshape(12, 12), joint)


@structures
def test_a_function_is_the_same_function_in_every_call(case: Any) -> None:
    truth, posterior = many(), posterior_of(case.name)
    whole = posterior.sample_functions(truth.x, 5, seed=3)
    for parts in ([14], [1] * 14, [5, 9], [13, 1]):
        pieces = [posterior.sample_functions(x, 5, seed=3) for x in truth.x.split(parts)]
        close(torch.cat(pieces, 1), whole, 1e-12)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    close(posterior.sample_functions(truth.x[order], 5, seed=3), whole[:, order], 1e-12)
    close(posterior.sample_functions(truth.x, 5, seed=3, memory=1), whole, 1e-12)
    # The first of more functions are those of fewer.
    close(posterior.sample_functions(truth.x, 9, seed=3)[:5], whole, 1e-12)


def test_functions_are_linear_in_sampled_weights() -> None:
    """Each function is f + J (θ − θ*) for one θ: at enough inputs, its deviations lie in the span of J."""
    truth, posterior = many(), posterior_of("full")
    deviations = posterior.sample_functions(truth.x, 3) - truth.f
    J = truth.J.flatten(0, 1)
    coefficients = torch.linalg.lstsq(J, deviations.flatten(1).T, driver="gelsd").solution
    close(J @ coefficients, deviations.flatten(1).T, 1e-9)


def test_seeds_and_indices_make_different_functions() -> None:
    truth, posterior = many(), posterior_of("kron")
    one, other = (posterior.sample_functions(truth.x, 4, seed=seed) for seed in (0, 1))
    together = torch.cat([one, other]).flatten(1)
    assert (torch.cdist(together, together) + 9 * torch.eye(8) > 1e-3).all()
    # Noise is not the same at every input.
    assert (one - truth.f).std(1).min() > 1e-3


@structures
def test_the_generator_decides(case: Any) -> None:
    posterior = posterior_of(case.name)
    one, same, other = (flat(posterior.sample(3, torch.Generator().manual_seed(seed))) for seed in (5, 5, 6))
    assert torch.equal(one, same)
    assert not torch.isclose(one, other).any()
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(flat(posterior.sample(3, generator)), one)
    assert not torch.equal(flat(posterior.sample(3, generator)), one)
    # Without one it is torch's own that decides.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = flat(posterior.sample(3)), flat(posterior.sample(3))
        torch.manual_seed(0)
        assert torch.equal(flat(posterior.sample(3)), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3"])
def test_numbers_of_samples_that_cannot_be(k: Any) -> None:
    truth, posterior = many(), posterior_of("kron")
    with pytest.raises(ll.InputError, match="k=.*positive"):
        posterior.sample(k)
    with pytest.raises(ll.InputError, match="k=.*positive"):
        posterior.sample_functions(truth.x, k)


def test_temperature_scales_the_spread_and_nothing_else() -> None:
    truth, posterior = many(), posterior_of("kron")
    hot = posterior.with_prior(ll.Prior(0.7, 4 * TEMPERATURE))
    close(hot.latent(truth.x).cov, 4 * posterior.latent(truth.x).cov, 1e-12)
    one, other = (p.sample_functions(truth.x, 3) - truth.f for p in (posterior, hot))
    close(other, 2 * one, 1e-12)
    close(hot.log_evidence(), posterior.log_evidence(), 1e-14)
    close(hot.latent(truth.x).mean, truth.f, 1e-12)
