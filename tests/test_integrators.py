"""Integrators against the trapezoid rule, very many samples and closed moments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as td

from linlap import likelihoods as lik
from linlap.errors import InputError, NotFiniteError
from linlap.integrators import (
    Exact,
    GaussHermite,
    Integrator,
    LaplaceBridge,
    MonteCarlo,
    Probit,
    default_for,
    moments_of_samples,
)
from linlap.likelihoods import Likelihood
from linlap.linalg import draw
from linlap.types import Gaussian
from tests.likelihood_cases import CASES, NAMES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=NAMES)
F64 = torch.float64
DEVIATIONS = [0.0, 1e-3, 0.5, 1.0, 1.5, 4.0, 8.0, 30.0]


def latent(outputs: int, n: int = 3, scale: float = 1.0, kind: str = "full") -> Gaussian:
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    root = torch.randn(n, outputs, outputs, generator=generator, dtype=torch.float64) * scale
    cov = root @ root.mT
    return Gaussian(mean, cov.diagonal(dim1=-2, dim2=-1) if kind == "diagonal" else cov)


def scalar(mean: float, deviation: float) -> Gaussian:
    return Gaussian(torch.tensor([[mean]], dtype=F64), torch.tensor([[deviation**2]], dtype=F64))


def by_trapezoid(function: object, mean: float, deviation: float) -> Tensor:
    """E[function(f)] for f ~ N(mean, deviation²), to about 1e-12."""
    if deviation == 0:
        return function(torch.tensor([mean], dtype=F64))[0]
    step = min(0.2, 0.1 * deviation)
    f = torch.arange(mean - 11 * deviation, mean + 11 * deviation, step, dtype=torch.float64)
    weight = (-0.5 * ((f - mean) / deviation).square()).exp()
    return (function(f) * weight).sum() / weight.sum()


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("mean", [0.0, -0.7, 3.0, 40.0])
def test_gauss_hermite_bernoulli(mean: float, deviation: float) -> None:
    likelihood = lik.Bernoulli()
    found = GaussHermite().moments(likelihood, scalar(mean, deviation))
    tolerance = 2e-6 if deviation > 8 else 1e-8
    close = {"rtol": 0, "atol": tolerance}
    p = by_trapezoid(torch.sigmoid, mean, deviation)
    aleatoric = by_trapezoid(likelihood.variance_of, mean, deviation)
    entropy = by_trapezoid(lambda f: likelihood.entropy_of(f.unsqueeze(-1)), mean, deviation)
    torch.testing.assert_close(found.mean[0, 0], p, **close)
    torch.testing.assert_close(found.aleatoric[0, 0], aleatoric, **close)
    torch.testing.assert_close(found.epistemic[0, 0], p * (1 - p) - aleatoric, **close)
    torch.testing.assert_close(found.expected_entropy[0], entropy, **close)
    predictive = GaussHermite().predict(likelihood, scalar(mean, deviation))
    torch.testing.assert_close(predictive.probs[0], p, **close)
    torch.testing.assert_close(found.predictive_entropy, predictive.entropy(), rtol=0, atol=1e-6)


def test_gauss_hermite_treats_labels_one_by_one() -> None:
    law = latent(3, scale=2.0)
    law = Gaussian(law.mean * torch.tensor([1.0, 1.0, 0.1]), law.cov)
    found = GaussHermite().moments(lik.Bernoulli(), law)
    singles = [
        GaussHermite().moments(lik.Bernoulli(), Gaussian(law.mean[:, [c]], law.variance[:, [c]])) for c in range(3)
    ]
    torch.testing.assert_close(found.mean, torch.cat([single.mean for single in singles], 1))
    torch.testing.assert_close(found.expected_entropy, sum(single.expected_entropy for single in singles))
    torch.testing.assert_close(found.predictive_entropy, sum(single.predictive_entropy for single in singles))
    assert GaussHermite().predict(lik.Bernoulli(), law).probs.shape == (3, 3)


def test_gauss_hermite_poisson_of_one_output() -> None:
    law = scalar(0.4, 0.6)
    predictive = GaussHermite().predict(lik.Poisson(), law)
    for count in (0.0, 1.0, 5.0):
        y = torch.tensor([[count]]).double()
        exact = by_trapezoid(lambda f, y=y: lik.Poisson().log_prob(y, f.unsqueeze(-1)).exp(), 0.4, 0.6)
        torch.testing.assert_close(predictive.log_prob(y).exp()[0], exact)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("noise", [0.3, torch.tensor([0.1, 1.0, 2.0])], ids=["scalar", "each"])
def test_exact_gaussian(kind: str, noise: float | Tensor) -> None:
    law = latent(3, kind=kind)
    predictive = Exact().predict(lik.Gaussian(noise), law)
    variance = torch.as_tensor(noise).double().square().expand(3)
    cov = (law.cov.diag_embed() if kind == "diagonal" else law.cov) + variance.diag_embed()
    y = torch.ones(3, 3).double()
    torch.testing.assert_close(
        predictive.log_prob(y), td.MultivariateNormal(law.mean, cov).log_prob(y), rtol=1e-6, atol=1e-6
    )
    moments = Exact().moments(lik.Gaussian(noise), law)
    torch.testing.assert_close(predictive.mean, moments.mean)
    torch.testing.assert_close(predictive.variance, moments.total)
    assert isinstance(predictive, td.MultivariateNormal if kind == "full" else td.Independent)


@pytest.mark.parametrize("deviation", [0.0, 1e-6, 1e-3, 0.1, 0.5, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_poisson_has_the_exact_mean_and_variance(deviation: float, dtype: torch.dtype) -> None:
    law = scalar(1.3, deviation)
    law = Gaussian(law.mean.to(dtype), law.cov.to(dtype))
    predictive = Exact().predict(lik.Poisson(), law)
    mean = math.exp(1.3 + deviation**2 / 2)
    variance = mean + mean**2 * math.expm1(deviation**2)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    assert predictive.mean.item() == pytest.approx(mean, rel=tolerance)
    assert predictive.variance.item() == pytest.approx(variance, rel=tolerance)
    moments = Exact().moments(lik.Poisson(), law)
    assert moments.total.item() == pytest.approx(variance, rel=tolerance)
    assert moments.epistemic.item() == pytest.approx(variance - mean, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_poisson_is_a_poisson_without_latent_variance(dtype: torch.dtype) -> None:
    y = torch.arange(30, dtype=dtype).reshape(-1, 1)
    mean = torch.full((30, 1), 2.0, dtype=dtype)
    exact = lik.Poisson().log_prob(y, mean)
    for variance in (0.0, 1e-12):
        found = Exact().predict(lik.Poisson(), Gaussian(mean, torch.full_like(mean, variance))).log_prob(y)
        torch.testing.assert_close(found, exact, rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=0)


@pytest.mark.parametrize("deviation", [0.05, 0.2, 0.25, 1.0])
def test_exact_poisson_log_prob_is_that_of_torch_and_sums_to_one(deviation: float) -> None:
    y = torch.arange(2000).double().reshape(-1, 1)
    law = Gaussian(torch.full_like(y, 1.0), torch.full_like(y, deviation**2))
    predictive = Exact().predict(lik.Poisson(), law)
    base = predictive.base_dist
    reference = td.NegativeBinomial(base.total_count, logits=base.logits).log_prob(y)
    torch.testing.assert_close(predictive.log_prob(y), reference.sum(-1), rtol=1e-9, atol=1e-9)
    assert predictive.log_prob(y).exp().sum().item() == pytest.approx(1, abs=1e-9)


def test_exact_poisson_survives_absurd_latents() -> None:
    for mean in (-1e4, 0.0, 1e4):
        for variance in (0.0, 1.0, 1e6):
            law = Gaussian(torch.full((2, 1), mean), torch.full((2, 1), variance))
            predictive = Exact().predict(lik.Poisson(), law)
            assert not predictive.log_prob(torch.tensor([[0.0], [7.0]])).isnan().any()
            assert torch.isfinite(Exact().moments(lik.Poisson(), law).total).all()


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_exact_heteroscedastic_moments_are_those_of_many_samples(kind: str) -> None:
    law = latent(4, scale=0.5, kind=kind)
    moments = Exact().moments(lik.HeteroscedasticGaussian(), law)
    predictive = Exact().predict(lik.HeteroscedasticGaussian(), law)
    sampled = MonteCarlo(200_000).moments(lik.HeteroscedasticGaussian(), law)
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(moments, name), getattr(sampled, name), rtol=0.03, atol=0.01)
    torch.testing.assert_close(predictive.variance, moments.total)


@every_case
def test_default_and_monte_carlo_agree(case: Case) -> None:
    law = latent(case.outputs, scale=0.4)
    exact = default_for(case.likelihood).moments(case.likelihood, law)
    sampled = MonteCarlo(100_000, torch.Generator().manual_seed(3)).moments(case.likelihood, law)
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(sampled, name), getattr(exact, name), rtol=0.05, atol=0.01)


@every_case
@pytest.mark.parametrize("integrator", [Exact(), MonteCarlo(50), GaussHermite(), Probit(), LaplaceBridge()], ids=repr)
def test_predictive_and_moments_are_consistent(case: Case, integrator: Integrator) -> None:
    law = latent(case.outputs, kind="full")
    if not integrator.supports(case.likelihood, case.outputs):
        with pytest.raises(InputError, match=r"cannot integrate .*; pass .*MonteCarlo"):
            integrator.predict(case.likelihood, law)
        return
    moments = integrator.moments(case.likelihood, law)
    predictive = integrator.predict(case.likelihood, law)
    torch.testing.assert_close(moments.total, moments.aleatoric + moments.epistemic, rtol=0, atol=0)
    assert (moments.aleatoric >= 0).all()
    assert (moments.epistemic >= 0).all()
    if isinstance(predictive, td.Categorical):
        mean = predictive.probs
        variance = mean * (1 - mean)
    else:
        mean = predictive.mean.reshape(moments.mean.shape)
        variance = predictive.variance.reshape(moments.mean.shape)
    torch.testing.assert_close(moments.mean, mean)
    torch.testing.assert_close(moments.total, variance)
    assert (moments.predictive_entropy is not None) == case.likelihood.discrete_classes
    if moments.predictive_entropy is not None:
        assert (moments.expected_entropy <= moments.predictive_entropy + 1e-12).all()
        torch.testing.assert_close(moments.predictive_entropy, predictive.entropy().reshape(3, -1).sum(-1))


@every_case
def test_joint_latents_predict_as_their_marginals(case: Case) -> None:
    n, c = 3, case.outputs
    root = torch.randn(n * c, n * c, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    joint = Gaussian(case.f(n), (root @ root.mT).reshape(n, c, n, c))
    integrator = default_for(case.likelihood)
    marginal = Gaussian(joint.mean, torch.stack([joint.cov[i, :, i] for i in range(n)]))
    found = integrator.moments(case.likelihood, joint)
    expected = integrator.moments(case.likelihood, marginal)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.epistemic, expected.epistemic)


def test_monte_carlo_is_decided_by_its_generator_only() -> None:
    law = latent(3)
    state = torch.random.get_rng_state()
    first = MonteCarlo(20).predict(lik.Categorical(), law).probs
    torch.testing.assert_close(MonteCarlo(20).predict(lik.Categorical(), law).probs, first, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), state)

    def with_seed(seed: int) -> Tensor:
        return MonteCarlo(20, torch.Generator().manual_seed(seed)).predict(lik.Categorical(), law).probs

    assert torch.equal(with_seed(7), with_seed(7))
    assert not torch.equal(with_seed(7), with_seed(8))
    moving = MonteCarlo(20, torch.Generator().manual_seed(7))
    assert not torch.equal(moving.predict(lik.Categorical(), law).probs, moving.predict(lik.Categorical(), law).probs)


def test_monte_carlo_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    law = latent(3, n=7)
    monkeypatch.setattr("linlap.integrators.monte_carlo._NUMBERS_AT_ONCE", 2 * 20_000 * 3)
    for likelihood in (lik.Categorical(), lik.Gaussian(0.1)):
        assert MonteCarlo(20_000).predict(likelihood, law).batch_shape == (7,)
        whole = moments_of_samples(likelihood, draw(law, 20_000, torch.Generator().manual_seed(0)))
        parts = MonteCarlo(20_000).moments(likelihood, law)
        torch.testing.assert_close(parts.mean, whole.mean, rtol=0.1, atol=0.1)
        assert parts.epistemic.shape == (7, 3)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_laws_in_parts_are_those_at_once(case: Case, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several laws of inputs that come in parts, against each law of all inputs by itself: the same noise."""
    laws = [latent(case.outputs, 5, scale, kind) for scale in (0.1, 1.0, 3.0)]
    expected = [MonteCarlo(20).predict(case.likelihood, law).mean for law in laws]
    for size in (10, 2**17):
        monkeypatch.setattr("linlap.integrators.monte_carlo._NUMBERS_AT_ONCE", size)
        predict = MonteCarlo(20).in_parts(case.likelihood, torch.device("cpu"))
        cuts = (slice(0, 2), slice(2, 5))
        parts = [predict([Gaussian(law.mean[cut], law.cov[cut]) for law in laws]) for cut in cuts]
        for place, wanted in enumerate(expected):
            found = torch.cat([part[place].mean for part in parts])
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("integrator", [Exact(), GaussHermite(), Probit(), LaplaceBridge(), MonteCarlo(50)], ids=repr)
def test_where_variances_suffice_covariances_make_no_difference(case: Case, integrator: Integrator) -> None:
    if not integrator.supports(case.likelihood, case.outputs) or not integrator.variances_suffice(case.likelihood):
        return
    full, diagonal = latent(case.outputs), latent(case.outputs, kind="diagonal")
    y = case.labels(full.mean)
    one, other = (integrator.predict(case.likelihood, law) for law in (full, diagonal))
    y = y.reshape(one.batch_shape + one.event_shape)
    torch.testing.assert_close(one.log_prob(y), other.log_prob(y), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        *(integrator.moments(case.likelihood, law).total for law in (full, diagonal)), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("weights", [None, torch.tensor([0.2, 0.8]).log().view(2, 1, 1)], ids=["equal", "weights"])
@pytest.mark.parametrize("gap", [3.0, 60.0, 85.0, 200.0, 1e4])
def test_classes_as_good_as_impossible_are_pooled_by_their_logarithms(gap: float, weights: Tensor | None) -> None:
    f = torch.tensor([[[0.0, -gap, 1.0], [0.5, 0.0, 1.0]], [[0.3, -gap - 1, 0.0], [0.0, 0.1, 0.2]]])
    log_weights = torch.tensor(0.5).log().expand(2, 1, 1) if weights is None else weights
    exact = (f.double().log_softmax(-1) + log_weights.double()).logsumexp(0)
    torch.testing.assert_close(lik.Categorical().pool(f, weights).double(), exact, rtol=2e-6, atol=1e-6)


def test_no_inputs_at_all() -> None:
    empty = Gaussian(torch.zeros(0, 3), torch.zeros(0, 3, 3))
    assert MonteCarlo(5).moments(lik.Categorical(), empty).mean.shape == (0, 3)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("likelihood", [lik.Bernoulli(), lik.Categorical()], ids=repr)
def test_probit_is_near_many_samples(likelihood: Likelihood, kind: str) -> None:
    law = latent(1 if isinstance(likelihood, lik.Bernoulli) else 4, n=8, scale=0.5, kind=kind)
    found = Probit().moments(likelihood, law)
    exact = MonteCarlo(50_000).moments(likelihood, law)
    for name in ("mean", "aleatoric", "epistemic"):
        error = (getattr(found, name) - getattr(exact, name)).abs()
        assert error.max() < 0.07
        assert error.mean() < 0.025
    torch.testing.assert_close(found.expected_entropy, exact.expected_entropy, rtol=0, atol=0.02)


def test_probit_of_two_classes_is_that_of_their_difference() -> None:
    law = latent(2)
    gap = Gaussian(law.mean[:, [1]] - law.mean[:, [0]], law.variance.sum(-1, keepdim=True) - 2 * law.cov[:, [0], 1])
    two, one = Probit().moments(lik.Categorical(), law), Probit().moments(lik.Bernoulli(), gap)
    torch.testing.assert_close(two.mean[:, [1]], one.mean)
    torch.testing.assert_close(two.epistemic[:, [1]], one.epistemic)


def test_probit_does_not_see_shifts_of_f() -> None:
    law = latent(3)
    shifted = Gaussian(law.mean + 100, law.cov)
    expected = Probit().predict(lik.Categorical(), law).probs
    torch.testing.assert_close(Probit().predict(lik.Categorical(), shifted).probs, expected)


@pytest.mark.parametrize("integrator", [MonteCarlo(20), GaussHermite(), Probit(), LaplaceBridge()], ids=repr)
@pytest.mark.parametrize("variance", [0.0, 1.0, 1e8])
def test_saturated_latents_in_single_precision(integrator: Integrator, variance: float) -> None:
    for likelihood, outputs in ((lik.Bernoulli(), 2), (lik.Categorical(), 4)):
        if integrator.supports(likelihood, outputs):
            mean = torch.tensor([[1e4] * outputs, [-1e4] * outputs, [1e4] + [-1e4] * (outputs - 1)])
            moments = integrator.moments(likelihood, Gaussian(mean, torch.full_like(mean, variance)))
            for value in (moments.mean, moments.total, moments.expected_entropy, moments.predictive_entropy):
                assert torch.isfinite(value).all()


def test_laplace_bridge_matches_the_dirichlet_it_names() -> None:
    law = latent(4, scale=0.8)
    centre = torch.eye(4).double() - 0.25
    mean, variance = law.mean @ centre, (centre @ law.cov @ centre).diagonal(dim1=-2, dim2=-1)
    alpha = (1 - 2 / 4 + mean.exp() * (-mean).exp().sum(-1, keepdim=True) / 16) / variance
    dirichlet = td.Dirichlet(alpha)
    moments = LaplaceBridge().moments(lik.Categorical(), law)
    torch.testing.assert_close(moments.mean, dirichlet.mean)
    torch.testing.assert_close(moments.epistemic, dirichlet.variance)
    torch.manual_seed(0)
    p = dirichlet.sample((100_000,))
    torch.testing.assert_close(moments.expected_entropy, -(p * p.log()).sum(-1).mean(0), rtol=0, atol=0.01)
    torch.testing.assert_close(moments.aleatoric, (p * (1 - p)).mean(0), rtol=0, atol=0.01)
    diagonal = Gaussian(law.mean, law.variance)
    full = Gaussian(law.mean, law.variance.diag_embed())
    torch.testing.assert_close(
        LaplaceBridge().moments(lik.Categorical(), diagonal).mean,
        LaplaceBridge().moments(lik.Categorical(), full).mean,
    )


def test_laplace_bridge_of_two_classes_is_near_many_samples() -> None:
    law = latent(2, n=6, scale=0.5)
    exact = MonteCarlo(50_000).moments(lik.Categorical(), law)
    found = LaplaceBridge().moments(lik.Categorical(), law)
    torch.testing.assert_close(found.mean, exact.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(found.epistemic, exact.epistemic, rtol=0, atol=0.02)


@pytest.mark.parametrize("size", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("variance", [0.0, 1e-20, 1.0, 1e8])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_laplace_bridge_stays_finite(size: float, variance: float, classes: int) -> None:
    mean = torch.zeros(2, classes)
    mean[0, 0], mean[1] = size, -size
    moments = LaplaceBridge().moments(lik.Categorical(), Gaussian(mean, torch.full_like(mean, variance)))
    for value in (moments.mean, moments.total, moments.expected_entropy, moments.predictive_entropy):
        assert torch.isfinite(value).all()
        assert (value >= 0).all()
    assert LaplaceBridge().predict(lik.Categorical(), Gaussian(mean, torch.full_like(mean, variance))) is not None


@every_case
def test_defaults(case: Case) -> None:
    expected = {lik.Bernoulli: GaussHermite(), lik.Categorical: MonteCarlo()}
    assert default_for(case.likelihood) == expected.get(type(case.likelihood), Exact())


def test_bad_settings_and_latents() -> None:
    with pytest.raises(InputError, match="samples=0"):
        MonteCarlo(0)
    with pytest.raises(InputError, match="generator=3"):
        MonteCarlo(10, 3)
    with pytest.raises(InputError, match="points=1000"):
        GaussHermite(1000)
    with pytest.raises(NotFiniteError, match="latent"):
        Exact().predict(lik.Gaussian(), scalar(float("nan"), 1.0))
    with pytest.raises(InputError, match=r"\[n, C\]"):
        Exact().predict(lik.Gaussian(), Gaussian(torch.zeros(3), torch.zeros(3)))
    with pytest.raises(InputError, match="M log variances"):
        Exact().predict(lik.HeteroscedasticGaussian(), latent(3))
