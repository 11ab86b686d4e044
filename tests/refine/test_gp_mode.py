"""The mode of a process: against plain Newton over weights with dense Jacobians; subspaces against their own Newton."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.refine import gp_projected
from linlap.refine.gp_mode import GpMode
from tests import reference, reference_gp
from tests.cases import likelihoods_for
from tests.checks import close
from tests.gp_modes import CHOICES, PRIOR, Model, at_mode, many, model_of, process, refined, same_law
from tests.truth import Truth, truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
NETWORKS = ["mlp_1_hidden", "mlp_2_hidden", "mlp_3_hidden", "conv2d", "lstm", "linear", "mlp_many_data"]
EVERY = [(name, law.name) for name in NETWORKS for law in likelihoods_for(truth_of(name).case.outputs)]
every = pytest.mark.parametrize(("name", "law"), EVERY)
choices = pytest.mark.parametrize("kind", CHOICES)
outputs = pytest.mark.parametrize("outputs", ["coupled", "independent"])


# Exact processes


@outputs
@every
@pytest.mark.parametrize("kind", ["everything", "subset", "top"])
def test_the_mode_is_the_oracles(name: str, law: str, kind: str, outputs: str) -> None:
    truth = truth_of(name, law)
    model = model_of(truth, outputs)
    before = process(truth, CHOICES[kind](len(truth.f)), outputs)
    found = refined(before, truth)
    concave = law != "heteroscedastic"
    mean = model.mode() if concave else found.shift.flatten() + model.theta
    close(found.shift.flatten() + model.theta, mean, 1e-7)
    at_mode(found, model, mean, outputs)
    assert found.refinement.converged
    assert found.refinement.gradient_norm <= 1e-8
    assert model.gradient(found.shift.flatten() + model.theta).norm() <= 1e-8
    assert bool((found.refinement.objective.diff() >= -1e-10).all())
    close(found.refinement.objective[-1], model.objective(mean), 1e-9)
    assert before.shift is None


@outputs
@pytest.mark.parametrize("kind", ["scalar", "per layer", "per weight"])
@pytest.mark.parametrize("choice", ["everything", "sparse"])
def test_priors(kind: str, outputs: str, choice: str) -> None:
    truth = truth_of("mlp_2_hidden", "categorical")
    given: Any = {"scalar": PRIOR, "per layer": {"0": 0.5, "2": 1.3, "4": 2.0}}
    precision = given.get(kind, torch.linspace(0.5, 2.0, len(truth.theta), dtype=torch.float64))
    model = model_of(truth, outputs, precision)
    found = refined(process(truth, CHOICES[choice](4), outputs, ll.Prior(precision)), truth)
    at_mode(found, model, model.mode(), outputs)


@outputs
@pytest.mark.parametrize("kind", ["subset", "top"])
def test_subsets_are_everything_of_their_own(kind: str, outputs: str) -> None:
    truth = many()
    found = refined(process(truth, CHOICES[kind](5), outputs), truth)
    x = found.points.x
    index = [int((truth.x == row).all(-1).nonzero()) for row in x]
    data = (x, truth.y[index])
    alone = process(truth, None, outputs, PRIOR * len(truth.f) / 5, data=data)
    expected = GpMode().refine(alone, data, progress=False)
    same_law(found, expected, truth.x)


@pytest.mark.parametrize("law", ["gaussian", "bernoulli", "poisson"])
@pytest.mark.parametrize("kind", CHOICES)
def test_one_output_is_coupled_with_itself(law: str, kind: str) -> None:
    truth = truth_of("mlp_1_hidden", law)
    one, other = (refined(process(truth, CHOICES[kind](4), kind_), truth) for kind_ in ("coupled", "independent"))
    same_law(one, other, truth.x)


@outputs
@choices
def test_regression_takes_one_step_to_the_closed_form(kind: str, outputs: str) -> None:
    truth = many("gaussian_per_output")
    n = len(truth.f)
    found = refined(process(truth, CHOICES[kind](n), outputs), truth)
    model = model_of(truth, outputs)
    rows, f0 = model.J.flatten(0, 1), truth.f.flatten() - model.J.flatten(0, 1) @ model.theta
    K = (rows / model.prior) @ rows.T
    variance = torch.as_tensor(truth.options["noise"], dtype=torch.float64).square().repeat(n)
    mean = f0 + K @ torch.linalg.solve(K + torch.diag(variance), truth.y.flatten() - f0)
    assert found.refinement.steps == 1
    close(found.latent(truth.x).mean.flatten(), mean, 1e-8 if kind != "sparse" else 1e-6)


# Through inducing inputs


@outputs
@every
def test_all_inducing_is_everything(name: str, law: str, outputs: str) -> None:
    truth = truth_of(name, law)
    singular = truth.f.numel() > len(truth.theta) if outputs == "coupled" else len(truth.f) > len(truth.theta)
    whole = refined(process(truth, None, outputs), truth)
    found = refined(process(truth, ll.Sparse(len(truth.f)), outputs), truth)
    assert found.refinement.converged
    same_law(found, whole, truth.x, 1e-6 if singular else 1e-8)
    assert found.refinement.gradient_norm <= 1e-7


@outputs
@pytest.mark.parametrize("law", ["gaussian", "bernoulli", "categorical", "poisson"])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_sparse_means_are_the_best_of_their_span(law: str, outputs: str, size: int) -> None:
    truth = many(law)
    before = process(truth, ll.Sparse(size), outputs)
    found, model = refined(before, truth), model_of(truth, outputs)
    J_z = reference.jacobian(truth.model(), before.points.x, truth.names)[1]
    inside = spanned(truth, J_z, outputs, model)
    mean = model.mode(inside)
    close(found.shift.flatten() + model.theta, mean, 1e-7)
    assert model.objective(mean) > model.objective(model.theta)
    close(found.refinement.objective[-1], model.objective(mean), 1e-9)
    lam, prior, (n, c) = model.lam(mean), truth.prior(PRIOR), truth.f.shape
    close(found.latent(truth.x).mean, model.f(mean))
    if outputs == "coupled":
        expected = reference_gp.sparse(truth.J, lam, J_z, truth.J, prior)
        close(found.latent(truth.x, joint=True).cov, expected.view(n, c, n, c))
    else:
        expected = reference_gp.sparse_independent(truth.J, lam, J_z, truth.J, prior)
        close(found.latent(truth.x, diagonal=True).cov, expected)


def spanned(truth: Truth, J_z: Tensor, outputs: str, model: Model) -> Tensor:
    """An orthonormal basis `[Q, k]` of P0⁻¹ Jᵀ of the inducing inputs and θ*; for each output by itself."""
    prior, parts = truth.prior(PRIOR), []
    for c in range(J_z.shape[1]):
        own = torch.cat([J_z[:, c] / prior, truth.theta[None]])
        if outputs == "coupled":
            parts.append(own)
        else:
            wide = torch.zeros(len(own), J_z.shape[1], len(prior), dtype=prior.dtype)
            wide[:, c] = own
            parts.append(wide.flatten(1))
    whole = torch.cat(parts)
    values, vectors = torch.linalg.eigh(whole.T @ whole)
    return vectors[:, values > 1e-12 * values[-1]]


def test_steps_with_the_diagonal_of_lambda_climb_to_the_same_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the curvature of all independent outputs at once does not fit into memory."""
    truth = many()
    before = process(truth, ll.Sparse(4), "independent")
    expected = refined(before, truth)
    monkeypatch.setattr(gp_projected, "available", lambda device: 1000)
    found = refined(before, truth, steps=2000)
    assert found.refinement.converged
    same_law(found, expected, truth.x)
