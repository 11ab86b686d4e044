"""Labels and settings that cannot be: each a clear error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linlap import likelihoods as lik
from linlap.errors import InputError, NotFiniteError
from linlap.likelihoods import Likelihood
from tests.likelihood_cases import CASES, NAMES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=NAMES)


@every_case
def test_wrong_number_of_rows(case: Case) -> None:
    f = case.f(4)
    with pytest.raises(InputError, match="3.* for 4 inputs"):
        case.likelihood.prepare(case.labels(f)[:3], f)


@every_case
def test_wrong_number_of_columns(case: Case) -> None:
    f = case.f(4)
    with pytest.raises(InputError, match=r"shape \(4, 7\)"):
        case.likelihood.prepare(torch.zeros(4, 7), f)


@every_case
def test_not_a_tensor(case: Case) -> None:
    f = case.f(3)
    with pytest.raises(InputError, match="list"):
        case.likelihood.prepare([0, 1, 0], f)
    with pytest.raises(InputError, match="complex"):
        case.likelihood.prepare(torch.zeros(3, dtype=torch.complex64), f)


@every_case
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite(case: Case, value: float) -> None:
    f = case.f(4)
    y = case.labels(f).double()
    y[2] = value
    with pytest.raises(InputError, match=r"y\[2.*(nan|inf|float64)"):
        case.likelihood.prepare(y, f)


@every_case
def test_outputs_that_are_not_a_matrix(case: Case) -> None:
    f = case.f(4)
    with pytest.raises(InputError, match=r"\[n, C\]"):
        case.likelihood.prepare(case.labels(f), f.unsqueeze(0))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "message"),
    [
        (lik.Bernoulli(), 1, torch.tensor([0.0, 2.0, 1.0]), r"y\[1, 0\] is 2.0.*0 and 1"),
        (lik.Bernoulli(), 1, torch.tensor([0.0, 0.5, 1.0]), r"y\[1, 0\] is 0.5"),
        (lik.Bernoulli(), 1, torch.tensor([-1, 1, -1]), r"\(y \+ 1\) / 2"),
        (lik.Bernoulli(), 3, torch.tensor([0, 1, 1]), r"pass y of shape \[3, 3\]"),
        (lik.Categorical(), 3, torch.tensor([0, 3, 1]), r"y\[1\] is 3.*0 to 2"),
        (lik.Categorical(), 3, torch.tensor([0, -1, -1]), r"y\[1\] is -1 \(2 such labels\)"),
        (lik.Categorical(), 3, torch.tensor([0.0, 1.5, 1.0]), r"y\[1\] is 1.5, not a class"),
        (lik.Categorical(), 3, torch.tensor([0.0, 2.0, 1.0]), r"pass y.long\(\)"),
        (lik.Categorical(), 3, torch.eye(3), r"y.argmax\(-1\)"),
        (lik.Categorical(), 3, torch.zeros(3, 1, dtype=torch.long), r"shape \[n\]"),
        (lik.Poisson(), 1, torch.tensor([0, -1, 3]), r"y\[1, 0\] is -1.0, not a count"),
        (lik.Poisson(), 1, torch.tensor([0, 1.5, 3]), r"y\[1, 0\] is 1.5, not a count"),
        (lik.Gaussian(), 2, torch.zeros(3), r"pass y of shape \[3, 2\]"),
        (lik.Gaussian(), 2, torch.zeros(3, 1), r"pass y of shape \[3, 2\]"),
        (lik.HeteroscedasticGaussian(), 4, torch.zeros(3, 4), r"pass y of shape \[3, 2\]"),
    ],
)
def test_labels_out_of_range(likelihood: Likelihood, outputs: int, y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        likelihood.prepare(y, torch.zeros(3, outputs))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "message"),
    [
        (lik.Categorical(), 1, r"Bernoulli\(\)"),
        (lik.HeteroscedasticGaussian(), 3, "M log variances"),
        (lik.Gaussian([1.0, 2.0]), 3, "2 noise levels for 3 outputs"),
        (lik.Poisson(), 0, "without outputs"),
        (lik.Bernoulli(), 0, "without outputs"),
    ],
)
def test_outputs_that_do_not_fit(likelihood: Likelihood, outputs: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        likelihood.check_outputs(outputs)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), "1", None, [1.0, 0.0], torch.eye(2), True])
def test_noise_that_cannot_be(noise: object) -> None:
    with pytest.raises(InputError, match="noise="):
        lik.Gaussian(noise)


def test_labels_that_overflow_the_dtype_of_the_outputs() -> None:
    with pytest.raises(NotFiniteError):
        lik.Gaussian().prepare(torch.tensor([1e300], dtype=torch.float64), torch.zeros(1, 1))


def test_boolean_and_small_integer_labels_are_welcome() -> None:
    f = torch.zeros(2, 1)
    assert lik.Bernoulli().prepare(torch.tensor([True, False]), f).tolist() == [[1.0], [0.0]]
    assert lik.Categorical().prepare(torch.tensor([1, 0], dtype=torch.uint8), torch.zeros(2, 2)).tolist() == [
        1,
        0,
    ]


def test_gaussians_compare_by_noise() -> None:
    assert lik.Gaussian(0.5) == lik.Gaussian(torch.tensor(0.5)) != lik.Gaussian([0.5, 1.0])
    assert hash(lik.Gaussian(0.5)) == hash(lik.Gaussian([0.5]))


def test_gaussian_noise_is_differentiable() -> None:
    noise = torch.tensor(0.7, requires_grad=True)
    lik.Gaussian(noise).log_prob(torch.ones(2, 1), torch.zeros(2, 1)).sum().backward()
    assert noise.grad is not None
