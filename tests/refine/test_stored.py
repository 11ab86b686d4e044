"""Refinement with all Jacobians held: against plain Newton and the paper's updates, over weights and over outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from torch import Tensor, nn

import linlap as ll
from linlap.data import as_batches
from linlap.refine import solvers
from linlap.refine.elbo import advance, elbo, initial, standard_noise
from linlap.refine.problem import problem_of
from linlap.refine.spaces import DiagonalSpace, FunctionSpace, Space, WeightSpace
from tests import reference, reference_refine
from tests.cases import likelihoods_for
from tests.checks import close, noise, rest_of, same
from tests.networks.parts import mlp
from tests.truth import Truth, truth_of

NETWORKS = ["mlp_1_hidden", "mlp_2_hidden", "mlp_3_hidden", "conv2d", "lstm", "mlp_many_data"]
EVERY = [(name, law.name) for name in NETWORKS for law in likelihoods_for(truth_of(name).case.outputs)]
CONCAVE = [(name, law) for name, law in EVERY if not law.startswith("hetero")]
PRIORS: dict[str, Any] = {"scalar": 0.8, "by weight": None}


def prior_of(truth: Truth, kind: str) -> Any:
    size = len(truth.theta)
    return 0.8 if kind == "scalar" else torch.linspace(0.4, 1.7, size, dtype=torch.float64)


def dense(truth: Truth, prior: Any) -> reference_refine.Model:
    given = (truth.law.oracle, truth.options, truth.J, truth.f, truth.y)
    return reference_refine.Model(*given, truth.theta, truth.prior(prior))


def data_of(truth: Truth) -> Any:
    return truth.x, truth.y


def problem(truth: Truth, prior: Any = 0.8) -> Any:
    posterior = truth.fit(ll.Full(), prior)
    return problem_of(posterior, as_batches(data_of(truth), 3, posterior.network.device))


# The mode


@pytest.mark.parametrize(("name", "law"), CONCAVE)
@pytest.mark.parametrize("kind", PRIORS)
def test_mode(name: str, law: str, kind: str) -> None:
    """Mean, covariance, evidence and totals are those of Laplace at the mode that plain Newton finds."""
    truth = truth_of(name, law)
    prior = prior_of(truth, kind)
    model = dense(truth, prior)
    refined = ll.refine(truth.fit(ll.Full(), prior), data_of(truth), ll.GlmMap(), progress=False)
    weights = reference_refine.mode(model)
    f = model.outputs(weights)
    precision = model.curvature(f) + torch.diag(model.prior)
    close(refined.mean, weights)
    close(refined.latent(truth.x).mean, f)
    close(refined.latent(truth.x).cov, reference.latent_covariance(truth.J, torch.linalg.inv(precision)))
    evidence = reference.log_evidence(model.log_likelihood(weights), weights, precision, model.prior)
    close(refined.log_evidence(), evidence)
    record = refined.refinement
    assert record is not None
    assert record.converged
    assert record.gradient_norm is not None
    assert record.gradient_norm <= 1e-8


@pytest.mark.parametrize("space", [WeightSpace, FunctionSpace])
@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_every_solver_finds_the_same_mode(space: type[Space], solver: str) -> None:
    given = problem(truth_of("mlp_3_hidden", "categorical"))
    expected = solvers.newton(WeightSpace(given), 100, 1e-10, lambda said: None)
    if solver == "newton":
        found = solvers.newton(space(given), 100, 1e-10, lambda said: None)
    else:
        found = solvers.lbfgs(WeightSpace(given), 2000, 1e-7, lambda said: None)  # its search compares values only
    close(found.weights, expected.weights, 1e-8 if solver == "newton" else 1e-6)
    assert found.converged


@pytest.mark.parametrize("structure", [ll.Kron(), ll.Diagonal(), ll.Full(), ll.LowRank(5), ll.Kron(corrected=True)])
def test_the_structure_is_fitted_at_the_mode(structure: Any) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    refined = ll.refine(truth.fit(structure, 0.8), data_of(truth), ll.GlmMap(), progress=False)
    assert refined.structure == structure
    assert refined.refinement is not None
    moved = dense(truth, 0.8).outputs(refined.mean)
    close(torch.tensor(refined.curvature.totals.log_likelihood, dtype=torch.float64), truth_log(truth, moved))
    if structure == ll.Diagonal():
        lam = reference.lam(truth.law.oracle, moved, **truth.options)
        close(refined.precision.dense().diagonal(), reference.diagonal_ggn(truth.J, lam) + 0.8)


def truth_log(truth: Truth, f: Tensor) -> Tensor:
    return reference.log_prob(truth.law.oracle, truth.y, f, **truth.options).sum()


def test_a_mode_is_left_where_it_is() -> None:
    truth = truth_of("mlp_2_hidden", "categorical")
    once = ll.refine(truth.fit(ll.Full(), 0.8), data_of(truth), ll.GlmMap(), progress=False)
    twice = ll.refine(once, data_of(truth), ll.GlmMap(), progress=False)
    close(twice.mean, once.mean)
    close(twice.latent(truth.x).cov, once.latent(truth.x).cov)


def test_adam_comes_near() -> None:
    truth = truth_of("mlp_2_hidden", "categorical")
    posterior = truth.fit(ll.Full(), 0.8)
    exact = ll.refine(posterior, data_of(truth), ll.GlmMap(), progress=False)
    rough = ll.refine(posterior, data_of(truth), ll.GlmMap("adam", steps=3000, rate=1e-2), progress=False)
    close(rough.mean, exact.mean, 1e-3)


def test_logistic_regression() -> None:
    """A network that is linear in its weights: scikit-learn's own solver finds the same weights."""
    X = noise(60, 4)
    y = (X[:, 0] + 0.5 * noise(60, seed=1) > 0).double()
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    posterior = ll.laplace(model, (X, y), ll.Bernoulli(), ll.Full(), 0.7, progress=False)
    refined = ll.refine(posterior, (X, y), ll.GlmMap(), progress=False)
    peer = LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-12, max_iter=1000).fit(X.numpy(), y.numpy())
    close(refined.mean, torch.from_numpy(np.asarray(peer.coef_[0])), 1e-6)


def test_poisson_regression() -> None:
    X = noise(80, 3)
    y = torch.poisson((0.5 * X[:, 0] + 0.3).exp(), generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    posterior = ll.laplace(model, (X, y), ll.Poisson(), ll.Full(), 2.0, progress=False)
    refined = ll.refine(posterior, (X, y), ll.GlmMap(), progress=False)
    peer = PoissonRegressor(alpha=2.0 / 80, fit_intercept=False, tol=1e-12, max_iter=10000).fit(X.numpy(), y.numpy())
    close(refined.mean, torch.from_numpy(np.asarray(peer.coef_)), 1e-6)


# Natural gradients


@pytest.mark.parametrize(("name", "law"), EVERY)
def test_spaces_agree_after_every_step(name: str, law: str) -> None:
    """From the same noise, also for the bound; the oracle's samples are the library's own formula, written out."""
    truth = truth_of(name, law)
    given, rate = problem(truth, prior_of(truth, "by weight")), 0.2
    spaces = [WeightSpace(given), FunctionSpace(given)]
    noise = standard_noise(spaces[0], 2, seed=3)
    states = [initial(space) for space in spaces]
    model = dense(truth, prior_of(truth, "by weight"))

    def sampler(step: int, precision: Tensor, blocks: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(blocks)
        root = vectors @ torch.diag_embed(values.clamp_min(0).sqrt()) @ vectors.mT
        rows = [
            torch.linalg.solve(precision, model.prior.sqrt() * e + torch.einsum("ncp,ncr,nr->p", model.J, root, u))
            for e, u in zip(*noise(step), strict=True)
        ]
        return torch.stack(rows)

    for expected in reference_refine.natural_gradient(model, 6, rate, sampler):
        states = [advance(space, state, rate, noise) for space, state in zip(spaces, states, strict=True)]
        means = [space.weights(state.mean) for space, state in zip(spaces, states, strict=True)]
        close(means[0], means[1])
        close(means[0], expected.mean, 1e-6)  # roots of singular matrices have half the digits
        close(elbo(spaces[0], states[0]), elbo(spaces[1], states[1]))
        covs = [space.marginals(state.factor) for space, state in zip(spaces, states, strict=True)]
        close(covs[0], covs[1])
        close(covs[0], reference.latent_covariance(truth.J, torch.linalg.inv(expected.precision)), 1e-6)


def test_diagonal_steps() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    given = problem(truth)
    space = DiagonalSpace(given)
    noise = standard_noise(space, 1, seed=0)
    state = initial(space)

    def sampler(step: int, precision: Tensor, blocks: Tensor) -> Tensor:
        return noise(step)[0] * precision.diagonal().rsqrt()

    for expected in reference_refine.natural_gradient(dense(truth, 0.8), 5, 0.1, sampler, diagonal=True):
        state = advance(space, state, 0.1, noise)
        close(state.mean, expected.mean)
        close(state.factor.lower, expected.precision.diagonal())


@pytest.mark.parametrize("kind", [WeightSpace, FunctionSpace])
def test_samples_have_the_covariance_of_the_posterior(kind: type[Space]) -> None:
    given = problem(truth_of("mlp_2_hidden", "categorical"))
    space = kind(given)
    state = initial(space)
    n = 20000
    first = torch.randn(n, given.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    second = torch.randn(n, *given.f.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = torch.stack([space.deviations(state.factor, *pair) for pair in zip(first, second, strict=True)])
    close(torch.einsum("snc,snd->ncd", drawn, drawn) / n, space.marginals(state.factor), 0.05)


def test_gaussian_likelihood_reaches_the_closed_form() -> None:
    """The covariance is exact from the start; the mean tends to the posterior's. The bound reaches the evidence."""
    truth = truth_of("mlp_2_hidden", "gaussian")
    model, prior = dense(truth, 0.8), 0.8
    noise_level = float(truth.options.get("noise", 1.0))
    posterior = truth.fit(ll.Full(), prior)
    refined = ll.refine(posterior, data_of(truth), ll.NaturalGradient(rate=0.5, steps=300), progress=False)
    weights = reference_refine.mode(model)
    precision = model.curvature(model.f) + torch.diag(model.prior)
    # One sample a step leaves noise in the mean where the residual depends on it: more samples, less noise.
    close(refined.latent(truth.x).cov, reference.latent_covariance(truth.J, torch.linalg.inv(precision)))
    evidence = reference.log_evidence(model.log_likelihood(weights), weights, precision, model.prior)
    record = refined.refinement
    assert record is not None
    assert (record.objective <= evidence + 1e-9 * evidence.abs()).all()
    expected = reference_refine.gaussian_elbo(model, refined.mean, precision, noise_level)
    close(record.objective[-1], expected)
    start = reference_refine.gaussian_elbo(model, model.theta, precision, noise_level)
    assert record.objective[-1] > start
    many = ll.NaturalGradient(rate=0.02, steps=600, samples=32)
    settled = ll.refine(refined, data_of(truth), many, progress=False)
    close(settled.latent(truth.x).mean, model.outputs(weights), 0.05)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_bound_is_one(covariance: Any, samples: int) -> None:
    """Never above the log evidence, which is exact where outputs are Gaussian, however long the steps."""
    for name in ("mlp_2_hidden", "linear", "mlp_many_data"):
        truth = truth_of(name, "gaussian")
        model, posterior = dense(truth, 0.8), truth.fit(ll.Full(), 0.8)
        weights = reference_refine.mode(model)
        precision = model.curvature(model.f) + torch.diag(model.prior)
        evidence = reference.log_evidence(model.log_likelihood(weights), weights, precision, model.prior)
        method = ll.NaturalGradient(covariance, rate=0.7, steps=40, samples=samples)
        record = ll.refine(posterior, data_of(truth), method, progress=False).refinement
        assert record is not None
        assert (record.objective <= evidence + 1e-9 * evidence.abs()).all()


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_the_bound_rises(covariance: Any) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior = truth.fit(ll.Full(), 0.8)
    method = ll.NaturalGradient(covariance, rate=0.05, steps=100, samples=4)
    record = ll.refine(posterior, data_of(truth), method, progress=False).refinement
    assert record is not None
    assert record.objective[-20:].mean() > record.objective[:5].mean()
    patient = ll.NaturalGradient(covariance, rate=0.05, steps=2000, patience=15)
    stopped = ll.refine(posterior, data_of(truth), patient, progress=False).refinement
    assert stopped is not None
    assert stopped.converged
    assert stopped.steps < 2000


def test_what_comes_out_is_a_posterior_like_any_other(tmp_path: Any) -> None:
    """Few data keep directions, many the matrix; both say what the steps say, are saved, and take another prior."""
    for name in ("mlp_2_hidden", "linear"):
        truth = truth_of(name)
        given = problem(truth)
        method = ll.NaturalGradient(steps=7, rate=0.1)
        space = method.space(given)
        state = method.climb(space)[0]
        model = truth.model()
        posterior = ll.laplace(model, data_of(truth), truth.likelihood, ll.Full(), 0.8, progress=False)
        before = rest_of(model)
        refined = ll.refine(posterior, data_of(truth), method, progress=False)
        assert same(before, rest_of(model))
        close(refined.mean, space.weights(state.mean))
        close(refined.latent(truth.x).mean, space.outputs(state.mean))
        close(refined.latent(truth.x).cov, space.marginals(state.factor))
        ll.save(refined, tmp_path / "posterior")
        loaded = ll.load(tmp_path / "posterior", truth.model())
        close(loaded.latent(truth.x).mean, refined.latent(truth.x).mean)
        close(loaded.with_prior(2.0).latent(truth.x).cov, refined.with_prior(2.0).latent(truth.x).cov)
        assert repr(loaded) == repr(refined)
        assert ll.BNN(refined, samples=3)(truth.x).batch_shape == ll.GLM(refined)(truth.x).batch_shape


# Many at once


@pytest.mark.parametrize("method", [ll.GlmMap(), ll.NaturalGradient(steps=9), ll.NaturalGradient("diagonal", steps=9)])
def test_many_problems_side_by_side(method: Any) -> None:
    """The same as one by one; problems of other sizes and likelihoods are in a batch of their own."""
    posteriors, data = [], []
    for seed in range(4):
        x = noise(6 if seed < 3 else 8, 3, seed=seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = mlp(3, 4, 3).double()
        y = torch.arange(len(x)) % 3
        posteriors.append(ll.laplace(model, (x, y), ll.Categorical(), ll.Full(), 0.5 + seed, progress=False))
        data.append((x, y))
    together = ll.refine(posteriors, data, method, progress=False)
    assert len(together) == 4
    for posterior, own, found in zip(posteriors, data, together, strict=True):
        alone = ll.refine(posterior, own, method, progress=False)
        close(found.latent(own[0]).mean, alone.latent(own[0]).mean)
        close(found.latent(own[0]).cov, alone.latent(own[0]).cov)
        close(found.log_evidence(), alone.log_evidence())
