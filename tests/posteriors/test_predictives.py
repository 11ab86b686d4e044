"""GLM, BNN and MAP against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import linlap as ll
from linlap.posteriors import WeightPosterior, samples
from tests import reference
from tests.cases import LIKELIHOODS, LikelihoodCase, likelihoods_for
from tests.checks import close
from tests.truth import Truth, truth_of

NETWORK = "mlp_3_hidden"  # of 4 outputs: every likelihood fits
likelihoods = pytest.mark.parametrize("law", LIKELIHOODS, ids=lambda law: law.name)
# Laws of y are compared by samples of f; so many keep their error near a percent.
SAMPLES = 40_000


def log_prob(predictive: td.Distribution, y: Tensor) -> Tensor:
    shape = predictive.batch_shape + predictive.event_shape
    return predictive.log_prob(y.reshape(shape)).reshape(len(y), -1).sum(1)


def brute_force(truth: Truth, P: Tensor, linear: bool, count: int = SAMPLES) -> Tensor:
    """f under sampled weights `[k, n, C]`, of the linear model or of the network."""
    weights = reference.draw_weights(truth.theta, torch.linalg.inv(P), count)
    if linear:
        return reference.glm_outputs(truth.f, truth.J, truth.theta, weights)
    return reference.bnn_outputs(truth.model(), truth.x, truth.names, weights)


def mixture_log_prob(truth: Truth, f: Tensor) -> Tensor:
    """log of the averaged probability of y; predictives of several labels leave their correlations out."""
    if truth.law.oracle != "bernoulli":
        return reference.mixture_log_prob(truth.law.oracle, truth.y, f, **truth.options)
    p = reference.mean_of("bernoulli", f).mean(0)
    return torch.where(truth.y.bool(), p, 1 - p).log().sum(1)


def same_moments(found: Any, expected: reference.Moments, tolerance: float) -> None:
    for name in ("mean", "aleatoric", "epistemic"):
        close(getattr(found, name), getattr(expected, name), tolerance)


@likelihoods
def test_map(law: LikelihoodCase) -> None:
    truth = truth_of(NETWORK, law.name)
    posterior = truth.fit(ll.Kron())
    close(
        log_prob(ll.MAP(posterior)(truth.x), truth.y), reference.log_prob(law.oracle, truth.y, truth.f, **truth.options)
    )
    moments = ll.MAP(posterior).moments(truth.x)
    close(moments.mean, reference.mean_of(law.oracle, truth.f))
    close(moments.aleatoric, reference.variance_of(law.oracle, truth.f, **truth.options))
    assert not moments.epistemic.any()


@likelihoods
def test_glm(law: LikelihoodCase) -> None:
    """By whatever integral is the default."""
    truth = truth_of(NETWORK, law.name)
    posterior = truth.fit(ll.Full(), 20.0)
    f = brute_force(truth, posterior.precision.dense(), linear=True)
    same_moments(ll.GLM(posterior).moments(truth.x), reference.monte_carlo(law.oracle, f, **truth.options), 0.15)
    found = log_prob(ll.GLM(posterior)(truth.x), truth.y)
    close(found, mixture_log_prob(truth, f), 0.03)


def test_glm_of_a_gaussian_is_exact() -> None:
    truth = truth_of(NETWORK, "gaussian_per_output")
    posterior = truth.fit(ll.Full(), 0.7)
    noise = truth.options["noise"].double().square().diag()
    cov = reference.latent_covariance(truth.J, torch.linalg.inv(posterior.precision.dense())) + noise
    expected = td.MultivariateNormal(truth.f, cov)
    found = ll.GLM(posterior)(truth.x)
    close(found.log_prob(truth.y), expected.log_prob(truth.y))
    close(found.mean, truth.f)
    close(found.variance, cov.diagonal(dim1=1, dim2=2))
    alone = ll.GLM(posterior, diagonal=True)(truth.x)
    close(alone.variance, cov.diagonal(dim1=1, dim2=2))


@likelihoods
def test_bnn(law: LikelihoodCase) -> None:
    """A temperature so low that the network's tails do not rule the average."""
    truth = truth_of(NETWORK, law.name)
    posterior = truth.fit(ll.Kron(), ll.Prior(20.0, 0.3))
    f = brute_force(truth, posterior.precision.dense() / 0.3, linear=False, count=1500)
    found = ll.BNN(posterior, samples=1500, generator=torch.Generator().manual_seed(1))
    same_moments(found.moments(truth.x), reference.monte_carlo(law.oracle, f, **truth.options), 0.2)
    close(log_prob(found(truth.x), truth.y), mixture_log_prob(truth, f), 0.05)


@likelihoods
def test_bnn_is_the_mixture_of_its_outputs(law: LikelihoodCase) -> None:
    truth = truth_of(NETWORK, law.name)
    bnn = ll.BNN(truth.fit(ll.Diagonal()), samples=7)
    f = bnn.outputs(truth.x)
    assert f.shape == (7, *truth.f.shape)
    close(log_prob(bnn(truth.x), truth.y), mixture_log_prob(truth, f))
    same_moments(bnn.moments(truth.x), reference.monte_carlo(law.oracle, f, **truth.options), 1e-8)


# Local reparameterisation: the law of the outputs for each input is that of sampled weights.

LOCAL = {
    "mlp_2_hidden": ["0", "2", "4"],
    "relu": ["0", "2", "4"],
    "residual": ["fc", "head"],
    "inplace_relu": ["0", "2", "4"],
    "linear_no_bias": ["0"],
    "frozen_some": ["0", "4"],
    "dropout": ["0", "2"],
    "batch_norm_mlp": ["0", "2"],
    "keyword_call": ["fc", "head"],
    "tuple": ["left", "right", "head"],
    "conv2d": ["3"],
    # Weights that act several times for one input must be the same each time.
    "tied_linears": ["4"],
    "linear_reused": ["head"],
    "positions": ["head"],
    "positions_merged": ["head"],
    "called_and_functional": ["head"],
    "keys_from_table": ["head"],
    "user_hooks": ["2"],
    "twins_concatenated": ["head"],
    "tied_embedding": [],
    "linear_by_type_only": ["head"],
}


def outputs_by_weights(posterior: WeightPosterior, x: Any, k: int) -> Tensor:
    drawn = posterior.sample(k, torch.Generator().manual_seed(11))
    with torch.no_grad():
        each = [posterior.network.outputs_at({key: w[i] for key, w in drawn.items()}, x) for i in range(k)]
    return torch.stack(each)


@pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
@pytest.mark.parametrize("name", LOCAL)
def test_diagonal_bnn_has_the_law_of_sampled_weights(name: str) -> None:
    """Means, variances and covariances of the outputs of each input, within the errors of so many samples."""
    truth = truth_of(name)
    posterior = truth.fit(ll.Diagonal(), ll.Prior(6.0))
    k = 1500
    one = ll.BNN(posterior, samples=k, generator=torch.Generator().manual_seed(7)).outputs(truth.x)
    other = outputs_by_weights(posterior, truth.x, k)
    error = ((one.var(0) + other.var(0)) / k).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() <= 5 * error).all()
    for n in range(one.shape[1]):
        a, b = one[:, n] - one[:, n].mean(0), other[:, n] - other[:, n].mean(0)
        products = [torch.einsum("kc,kd->kcd", s, s) for s in (a, b)]
        error = ((products[0].var(0) + products[1].var(0)) / k).sqrt()
        assert ((products[0].mean(0) - products[1].mean(0)).abs() <= 5 * error).all()


@pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
@pytest.mark.parametrize("name", LOCAL)
def test_noise_is_at_the_outputs_of_layers_only_where_it_may_be(name: str) -> None:
    truth = truth_of(name)
    network = truth.fit(ll.Diagonal()).network
    found = samples._local_layers(network, truth.x)
    layers = {name for name, module in network.model.named_modules() if module in found}
    assert layers == set(LOCAL[name])
    own = {weight for layer in found.values() for weight in layer.values()}
    assert own == {weight for weight in truth.names if weight.rpartition(".")[0] in layers}


def test_local_noise_differs_between_inputs_and_is_not_left_behind() -> None:
    truth = truth_of("mlp_2_hidden")
    posterior = truth.fit(ll.Diagonal())
    twice = truth.x[:1].expand(2, -1)
    f = ll.BNN(posterior, samples=3).outputs(twice)
    assert not torch.isclose(f[:, 0], f[:, 1]).any()
    close(posterior.network.outputs(truth.x), truth.f)
    g = ll.BNN(truth.fit(ll.Full()), samples=3).outputs(twice)  # with weights sampled, it is one function
    close(g[:, 0], g[:, 1])


@pytest.mark.parametrize("structure", [ll.Full(), ll.Diagonal()], ids=str)
def test_the_generator_decides_the_bnn(structure: Any) -> None:
    truth = truth_of("mlp_2_hidden")
    posterior = truth.fit(structure)
    one, same, other = (
        ll.BNN(posterior, 3, torch.Generator().manual_seed(seed)).outputs(truth.x) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.isclose(one, other).any()
    assert torch.equal(ll.BNN(posterior, 3).outputs(truth.x), ll.BNN(posterior, 3).outputs(truth.x))


@pytest.mark.parametrize("name", ["output_vector", "mlp_1_hidden"])
def test_one_output(name: str) -> None:
    """[n] and [n, 1] alike, for all likelihoods that take one."""
    for law in likelihoods_for(1):
        truth = truth_of(name, law.name)
        posterior = truth.fit(ll.Kron())
        for predictive in (ll.GLM(posterior), ll.BNN(posterior, samples=3), ll.MAP(posterior)):
            assert torch.isfinite(log_prob(predictive(truth.x), truth.y)).all()
            assert predictive.moments(truth.x).mean.shape == (len(truth.f), 1)


@pytest.mark.parametrize("count", [0, -3, True, 2.0])
def test_numbers_of_samples_that_cannot_be(count: Any) -> None:
    with pytest.raises(ll.InputError, match="samples=.*positive"):
        ll.BNN(truth_of("mlp_2_hidden").fit(ll.Diagonal()), samples=count)
