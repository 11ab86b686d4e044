"""The evidence's derivative in the prior: the same whatever was asked before, and in which mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import linlap as ll
from tests.cases import STRUCTURES
from tests.checks import close
from tests.structures import StructureCase
from tests.truth import truth_of

structures = pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)


def slope(posterior: Any) -> torch.Tensor:
    δ = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    posterior.with_prior(ll.Prior(δ)).log_evidence().backward()
    assert δ.grad is not None
    return δ.grad


@structures
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_predictions_without_gradients_come_first(case: StructureCase, mode: Any) -> None:
    truth = truth_of("mlp_2_hidden")
    expected = slope(truth.fit(case.structure))
    with mode():
        posterior = truth.fit(case.structure)
        posterior.latent(truth.x)
    close(slope(posterior), expected)
    δ = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    asked = posterior.with_prior(ll.Prior(δ))
    with mode():
        asked.latent(truth.x)
        asked.log_evidence()
    asked.log_evidence().backward()
    assert δ.grad is not None
    close(δ.grad, expected)


@structures
def test_a_prior_keeps_its_numbers(case: StructureCase) -> None:
    """Though its tensor is changed in place, as optimisers do."""
    truth = truth_of("mlp_2_hidden")
    δ = torch.tensor(0.9, dtype=torch.float64)
    for prior in (ll.Prior(δ), ll.Prior({"": δ})):
        posterior = truth.fit(case.structure, prior)
        before = posterior.log_evidence()
        δ.fill_(2.0)
        close(posterior.log_evidence(), before, 0.0)
        δ.fill_(0.9)
