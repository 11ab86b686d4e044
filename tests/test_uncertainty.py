"""The parts of a predictive's uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from linlap.errors import InputError
from linlap.integrators import Moments, default_for, moments_of_samples
from linlap.linalg import draw
from linlap.types import Gaussian
from linlap.uncertainty import uncertainty
from tests.likelihood_cases import CASES, NAMES, Case


@dataclass(frozen=True)
class Predictive:
    """A predictive whose f is N(x, 1), by samples or by the default integrator."""

    case: Case
    samples: int | None = None

    def moments(self, x: Tensor) -> Moments:
        law = Gaussian(x, torch.ones_like(x))
        if self.samples is None:
            return default_for(self.case.likelihood).moments(self.case.likelihood, law)
        f_samples = draw(law, self.samples, torch.Generator().manual_seed(0))
        return moments_of_samples(self.case.likelihood, f_samples)


@pytest.mark.parametrize("samples", [None, 1, 30])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_parts_add_up(case: Case, samples: int | None) -> None:
    parts = uncertainty(Predictive(case, samples), case.f())
    assert torch.equal(parts.total, parts.aleatoric + parts.epistemic)
    assert (parts.epistemic >= 0).all()
    assert (parts.aleatoric >= 0).all()
    if samples == 1:
        assert (parts.epistemic == 0).all()
    if not case.likelihood.discrete_classes:
        assert parts.entropy is None
        assert parts.mutual_information is None
        return
    assert parts.entropy.shape == parts.mutual_information.shape == (5,)
    assert (parts.mutual_information >= 0).all()
    assert (parts.mutual_information <= parts.entropy).all()


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_moments_of_samples_against_a_loop(case: Case) -> None:
    f_samples = torch.stack([case.f(seed=seed) for seed in range(6)])
    found = moments_of_samples(case.likelihood, f_samples)
    means = torch.stack([case.likelihood.mean_of(f) for f in f_samples])
    noise = torch.stack([case.likelihood.variance_of(f) for f in f_samples])
    torch.testing.assert_close(found.mean, means.mean(0))
    torch.testing.assert_close(found.aleatoric, noise.mean(0))
    torch.testing.assert_close(found.epistemic, means.var(0, correction=0))
    if case.likelihood.discrete_classes:
        torch.testing.assert_close(found.total, found.mean * (1 - found.mean))
        entropies = [case.likelihood.observe(f).entropy().reshape(5, -1).sum(-1) for f in f_samples]
        torch.testing.assert_close(found.expected_entropy, torch.stack(entropies).mean(0))


def test_something_without_moments() -> None:
    with pytest.raises(InputError, match="Linear has no moments"):
        uncertainty(torch.nn.Linear(1, 1), torch.zeros(1, 1))
