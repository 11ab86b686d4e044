"""Evidence of Gaussian processes: weight space's where they are the same; their own formula's elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar

import linlap as ll
from tests import reference_gp
from tests.checks import close
from tests.truth import truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")


def process(law: str, inducing: Any = None, outputs: Any = "coupled", prior: Any = 0.7) -> Any:
    truth = truth_of("mlp_many_data", law)
    data = (truth.x, truth.y)
    return ll.gaussian_process(truth.model(), data, truth.likelihood, inducing, outputs, prior, progress=False)


@pytest.mark.parametrize(
    ("law", "over", "noise", "inducing"),
    [
        ("categorical", "scalar", None, ll.Everything()),
        ("categorical", "layer", None, ll.Everything()),
        ("gaussian", "scalar", "scalar", ll.Everything()),
        ("gaussian", "layer", "scalar", ll.Everything()),
        ("gaussian", "weight", None, ll.Everything()),
        ("categorical", "scalar", None, ll.Sparse(14)),
        ("gaussian", "scalar", "scalar", ll.Sparse(14)),
    ],
)
def test_coupled_processes_choose_what_weight_space_does(law: str, over: Any, noise: Any, inducing: Any) -> None:
    truth, method = truth_of("mlp_many_data", law), ll.Evidence(over, noise)
    weights: Any = ll.select_prior(truth.fit(ll.Full(), 0.7), method)
    found: Any = ll.select_prior(process(law, inducing), method)
    close(found.log_evidence(), weights.log_evidence(), 1e-8)
    close(found.latent(truth.x).cov, weights.latent(truth.x).cov, 1e-4)
    close(found.latent(truth.x).cov, process_under(found, law, inducing).latent(truth.x).cov, 1e-7)


def process_under(found: Any, law: str, inducing: Any) -> Any:
    """Built anew with the noise and the prior that were found."""
    truth = truth_of("mlp_many_data", law)
    data = (truth.x, truth.y)
    return ll.gaussian_process(truth.model(), data, found.likelihood, inducing, "coupled", found.prior, progress=False)


def test_independent_outputs() -> None:
    truth = truth_of("mlp_many_data", "categorical")

    def loss(u: float) -> float:
        prior = truth.prior(torch.tensor(u, dtype=torch.float64).exp())
        value = reference_gp.independent_evidence(truth.J, truth.lam, truth.log_likelihood, truth.theta, prior)
        return -float(value)

    best = minimize_scalar(loss, bounds=(-12, 12), method="bounded", options={"xatol": 1e-10})
    found = ll.Evidence().maximise(process("categorical", outputs="independent"))
    assert found.log_evidence[-1] == pytest.approx(-best.fun, rel=1e-9)
    close(found.posterior.log_evidence(), torch.tensor(-best.fun, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("inducing", [ll.Subset(5), ll.TopM(5), ll.Sparse(5)])
@pytest.mark.parametrize("outputs", ["coupled", "independent"])
def test_subsets_and_projections_are_at_their_own_maximum(inducing: Any, outputs: str) -> None:
    found = ll.Evidence().maximise(process("categorical", inducing, outputs))
    δ = float(found.posterior.prior.precision)
    here = float(found.posterior.log_evidence())
    assert here == pytest.approx(found.log_evidence[-1], rel=1e-9)
    for factor in (0.9, 1.1):
        assert float(found.posterior.with_prior(δ * factor).log_evidence()) < here


def test_a_refined_process() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    refined: Any = ll.refine(process("categorical"), (truth.x, truth.y), ll.GpMode(), progress=False)
    found = ll.Evidence().maximise(refined)
    δ, here = float(found.posterior.prior.precision), float(found.posterior.log_evidence())
    assert here == pytest.approx(found.log_evidence[-1], rel=1e-9)
    assert all(float(refined.with_prior(δ * factor).log_evidence()) < here for factor in (0.9, 1.1))
    close(found.posterior.shift, refined.shift, 0.0)
