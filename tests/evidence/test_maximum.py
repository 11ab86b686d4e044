"""The prior and noise that are found are those of the dense evidence's maximum, which scipy finds."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import linlap as ll
from tests import reference
from tests.cases import STRUCTURES, STRUCTURES_BY_NAME, likelihoods_for
from tests.checks import close
from tests.reference_evidence import Dense, at
from tests.truth import Truth, truth_of

# Without more data than inputs eigenvalues repeat, and a prior has several diagonals in a Kronecker eigenbasis.
NETWORK = "mlp_many_data"


def options(truth: Truth, noise: str | None) -> dict[str, Any]:
    return {"noise": noise} | ({"data": (truth.x, truth.y)} if noise == "output" else {})


def possible(name: str, over: str, noise: str | None) -> bool:
    """Several noises need parts by output that add up, and under Kron eigenvectors that stay."""
    case = STRUCTURES_BY_NAME[name]
    if over == "weight" and not case.per_weight:
        return False
    if noise == "output" and (not case.adds or isinstance(case.structure, ll.LowRank)):
        return False
    return not (noise == "output" and over == "weight" and isinstance(case.structure, ll.Kron))


SETTINGS = [
    (case.name, over, noise)
    for case in STRUCTURES
    for over in ("scalar", "layer", "weight")
    for noise in (None, "scalar", "output")
    if possible(case.name, over, noise)
]


@pytest.fixture(autouse=True)
def layers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the oracle of Kron asks of the network does not change with the prior."""
    uses: dict[str, Any] = {}
    original = reference.linear_use

    def kept(model: Any, x: Any, layer: str) -> Any:
        if layer not in uses:
            uses[layer] = original(model, x, layer)
        return uses[layer]

    monkeypatch.setattr(reference, "linear_use", kept)


@cache
def fitted(name: str, law: str) -> Any:
    return truth_of(NETWORK, law).fit(STRUCTURES_BY_NAME[name].structure, 1.0)


def check(truth: Truth, name: str, over: Any, noise: Any, tolerance: float = 1e-7) -> None:
    posterior = fitted(name, truth.law.name)
    found = ll.Evidence(over, **options(truth, noise)).maximise(posterior)
    assert found.converged
    oracle = Dense(truth, STRUCTURES_BY_NAME[name].precision, over, noise)
    reached = oracle.value(at(oracle, found.posterior))
    close(torch.tensor(found.log_evidence[-1], dtype=torch.float64), reached, 1e-9)
    close(found.posterior.log_evidence(), reached, 1e-9)
    if over == "weight" and noise and isinstance(STRUCTURES_BY_NAME[name].structure, ll.Kron | ll.LowRank):
        # Autograd has no derivative of repeated eigenvalues' vectors. The evidence is concave: no slope is enough.
        x, step = at(oracle, found.posterior), 1e-4
        moves = step * torch.eye(len(x), dtype=torch.float64)
        slopes = torch.stack([oracle.value(x + move) - oracle.value(x - move) for move in moves]) / (2 * step)
        assert float(slopes.abs().max()) < 1e-5
    else:
        assert found.log_evidence[-1] >= oracle.maximum() - tolerance * abs(float(reached))
    assert all(b >= a - 1e-9 for a, b in zip(found.log_evidence, found.log_evidence[1:], strict=False))


@pytest.mark.parametrize(("name", "over", "noise"), SETTINGS)
def test_gaussian(name: str, over: str, noise: str | None) -> None:
    check(truth_of(NETWORK, "gaussian"), name, over, noise)


@pytest.mark.parametrize("law", [case.name for case in likelihoods_for(3) if case.name != "gaussian"])
@pytest.mark.parametrize("over", ["scalar", "layer"])
@pytest.mark.parametrize("name", ["full", "kron", "diagonal"])
def test_other_likelihoods(law: str, over: str, name: str) -> None:
    check(truth_of(NETWORK, law), name, over, None)


@pytest.mark.parametrize("noise", ["scalar", "output"])
@pytest.mark.parametrize("name", ["full", "kron", "kron_dampened", "diagonal"])
def test_what_is_chosen_is_a_fit_under_it(name: str, noise: str) -> None:
    """Curvature, likelihood and evidence are as if the data had been fitted with the noise and the prior found."""
    truth = truth_of(NETWORK, "gaussian")
    structure = STRUCTURES_BY_NAME[name].structure
    found: Any = ll.select_prior(fitted(name, "gaussian"), ll.Evidence(**options(truth, noise)))
    data = (truth.x, truth.y)
    again = ll.laplace(truth.model(), data, found.likelihood, structure, found.prior, progress=False)
    close(found.precision.dense(), again.precision.dense())
    close(found.latent(truth.x).cov, again.latent(truth.x).cov)
    close(found.log_evidence(), again.log_evidence())
    assert found.curvature.totals.count == again.curvature.totals.count
    both, expected = found.curvature + found.curvature, again.curvature + again.curvature
    close(both.precision(found.prior).dense(), expected.precision(found.prior).dense())
