"""What every likelihood promises, against autodiff in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from linlap.likelihoods import ClassLikelihood, HeteroscedasticGaussian
from tests.likelihood_cases import CASES, NAMES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=NAMES)


def one_log_prob(case: Case, f: Tensor, y: Tensor) -> Tensor:
    return case.likelihood.log_prob(y.unsqueeze(0), f.unsqueeze(0)).squeeze(0)


def prepared(case: Case, f: Tensor) -> Tensor:
    return case.likelihood.prepare(case.labels(f), f)


@every_case
def test_residual_is_the_gradient(case: Case) -> None:
    f = case.f()
    y = prepared(case, f)
    expected = vmap(grad(lambda f, y: one_log_prob(case, f, y)))(f, y)
    torch.testing.assert_close(case.likelihood.residual(y, f), expected, rtol=1e-12, atol=1e-12)


@every_case
def test_hessian_sqrt_squares_to_the_negative_hessian(case: Case) -> None:
    f = case.f()
    y = prepared(case, f)
    root = case.likelihood.hessian_sqrt(f)
    exact = -vmap(hessian(lambda f, y: one_log_prob(case, f, y)))(f, y)
    if isinstance(case.likelihood, HeteroscedasticGaussian):
        exact = expected_over_labels(case, f)
    torch.testing.assert_close(root @ root.mT, exact, rtol=1e-12, atol=1e-12)


def expected_over_labels(case: Case, f: Tensor) -> Tensor:
    """−∂² log p / ∂f² averaged over y, by three-point quadrature: it is quadratic in y."""
    spread = 3**0.5 * case.likelihood.variance_of(f).sqrt()
    mean = case.likelihood.mean_of(f)
    parts = [
        weight * -vmap(hessian(lambda f, y: one_log_prob(case, f, y)))(f, mean + step * spread)
        for step, weight in ((-1, 1 / 6), (0, 2 / 3), (1, 1 / 6))
    ]
    return torch.stack(parts).sum(0)


@every_case
@pytest.mark.parametrize("size", [30.0, 100.0, 1e4])
def test_everything_stays_finite_and_psd_when_saturated(case: Case, size: float) -> None:
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
    f = size * signs.repeat(1, case.outputs)[:, : case.outputs]
    y = prepared(case, f)
    likelihood = case.likelihood
    root = likelihood.hessian_sqrt(f)
    square = root @ root.mT
    for value in (root, square, likelihood.residual(y, f), likelihood.log_prob(y, f), likelihood.mean_of(f)):
        assert torch.isfinite(value).all()
    assert torch.linalg.eigvalsh(square.double()).min() >= -1e-6 * square.abs().max()
    assert (likelihood.variance_of(f) >= 0).all()
    assert torch.isfinite(likelihood.observe(f).log_prob(y if y.ndim == 1 else y.reshape(shape_of(case, f)))).all()


def shape_of(case: Case, f: Tensor) -> torch.Size:
    distribution = case.likelihood.observe(f)
    return distribution.batch_shape + distribution.event_shape


@every_case
def test_observe_has_the_same_log_prob_mean_and_variance(case: Case) -> None:
    f = case.f()
    y = prepared(case, f)
    distribution = case.likelihood.observe(f)
    log_prob = distribution.log_prob(y.reshape(shape_of(case, f)))
    torch.testing.assert_close(log_prob.reshape(len(f), -1).sum(-1), case.likelihood.log_prob(y, f))
    if distribution.batch_shape + distribution.event_shape == y.shape and y.ndim == 2:
        torch.testing.assert_close(distribution.mean, case.likelihood.mean_of(f))
        torch.testing.assert_close(distribution.variance, case.likelihood.variance_of(f))


@every_case
def test_mixture_is_the_average_probability(case: Case) -> None:
    f_samples = torch.stack([case.f(seed=seed) for seed in range(4)])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    y = prepared(case, f_samples[0])
    mixture = case.likelihood.mixture(f_samples, weights.log().reshape(-1, 1, 1))
    found = mixture.log_prob(y.reshape(mixture.batch_shape + mixture.event_shape))
    each = torch.stack([case.likelihood.observe(f).log_prob(y.reshape(shape_of(case, f))).exp() for f in f_samples])
    torch.testing.assert_close(found.exp(), torch.einsum("s,s...->...", weights, each))
    assert torch.isfinite(mixture.variance).all() or isinstance(mixture, torch.distributions.Categorical)


@every_case
def test_leading_axes_are_allowed(case: Case) -> None:
    f_samples = torch.stack([case.f(seed=seed) for seed in range(3)])
    likelihood = case.likelihood
    y = prepared(case, f_samples[0])
    functions = [likelihood.mean_of, likelihood.variance_of, likelihood.hessian_sqrt]
    functions.append(lambda f: likelihood.log_prob(y, f))
    if isinstance(likelihood, ClassLikelihood):
        functions.append(likelihood.entropy_of)
    for function in functions:
        torch.testing.assert_close(function(f_samples), torch.stack([function(f) for f in f_samples]))


@every_case
def test_entropy_is_that_of_the_distribution(case: Case) -> None:
    if isinstance(case.likelihood, ClassLikelihood):
        f = case.f()
        expected = case.likelihood.observe(f).entropy().reshape(len(f), -1).sum(-1)
        torch.testing.assert_close(case.likelihood.entropy_of(f), expected)
        assert case.likelihood.discrete_classes
        assert torch.isfinite(case.likelihood.entropy_of(1e4 * f.float())).all()


@every_case
def test_pooling_saturated_samples_keeps_small_probabilities(case: Case) -> None:
    if isinstance(case.likelihood, ClassLikelihood):
        f = torch.full((3, 2, case.outputs), -200.0)
        f[..., 0] = 200.0
        torch.testing.assert_close(
            case.likelihood.log_prob(prepared(case, f[0]), case.likelihood.pool(f)),
            case.likelihood.log_prob(prepared(case, f[0]), f[0]),
        )


@every_case
def test_prepare_gives_the_outputs_dtype_and_shape(case: Case) -> None:
    f = case.f(dtype=torch.float32)
    y = prepared(case, f)
    assert len(y) == len(f)
    assert y.dtype in (torch.float32, torch.int64)
    if y.ndim == 2 and y.shape[1] == 1:
        assert torch.equal(case.likelihood.prepare(y.squeeze(1), f), y)
