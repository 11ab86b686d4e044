"""Where torch puts new tensors by default is no business of a posterior's: everything lies where the model does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linlap as ll
from tests.cases import LIKELIHOODS, STRUCTURES, LikelihoodCase, StructureCase
from tests.checks import close, noise
from tests.networks.parts import mlp

X, Y = noise(8, 2, 3), torch.arange(8) % 4
CHOICES = [ll.Everything(), ll.Subset(4), ll.TopM(4), ll.Sparse(4)]


def model_of() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 4))
    return body.double()


def elsewhere(compute: Callable[[], Tensor]) -> None:
    """The same numbers, on the CPU, where new tensors go to a device that holds none."""
    expected = compute()
    with torch.device("meta"):
        found = compute()
    assert found.device == expected.device
    close(found.detach(), expected.detach())


def fit(structure: Any = None, data: Any = None, likelihood: Any = None, **options: Any) -> Any:
    lik = ll.Categorical() if likelihood is None else likelihood
    with torch.device("cpu"):
        model = model_of()
    return ll.laplace(model, (X, Y) if data is None else data, lik, structure, progress=False, **options)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
def test_weight_space(case: StructureCase) -> None:
    def compute() -> Tensor:
        posterior = fit(case.structure, prior=ll.Prior({"": 2.0, "4": 0.5}, temperature=0.7))
        parts = [posterior.latent(X).cov, posterior.latent(X, joint=True).cov, posterior.sample_functions(X, 2)]
        parts += [ll.BNN(posterior, 2)(X).probs, ll.uncertainty(ll.GLM(posterior), X).epistemic]
        parts += [law.cov for law in posterior.latents(X, [1.0, 3.0])] + [posterior.log_evidence()]
        return torch.cat([part.detach().flatten() for part in parts])

    elsewhere(compute)


@pytest.mark.parametrize("outputs", ["independent", "coupled"])
@pytest.mark.parametrize("inducing", CHOICES, ids=str)
def test_function_space(inducing: Any, outputs: Any) -> None:
    with torch.device("cpu"):
        model = model_of()

    def compute() -> Tensor:
        process = ll.gaussian_process(model, (X, Y), ll.Categorical(), inducing, outputs, 2.0, progress=False)
        parts = [process.latent(X).cov, process.latent(X, joint=True).cov, process.sample_functions(X, 2)]
        parts += [law.cov for law in process.latents(X, [1.0, 3.0])] + [process.log_evidence()]
        return torch.cat([part.detach().flatten() for part in parts])

    elsewhere(compute)


@pytest.mark.parametrize("case", LIKELIHOODS, ids=lambda case: case.name)
def test_likelihoods_and_integrators(case: LikelihoodCase) -> None:
    with torch.no_grad():
        y, options = case.targets(model_of()(X)), case.options(4)
    kinds = [ll.Exact(), ll.MonteCarlo(20), ll.GaussHermite(), ll.Probit(), ll.LaplaceBridge()]

    def compute() -> Tensor:
        posterior = fit(data=(X, y), likelihood=case.library(**options), prior=1.0)
        able = [kind for kind in kinds if kind.supports(posterior.likelihood, 4)]
        return torch.cat([ll.uncertainty(ll.GLM(posterior, kind), X).total for kind in able])

    elsewhere(compute)


def test_data_prior_and_files(tmp_path: Path) -> None:
    path = tmp_path / "posterior"
    elsewhere(lambda: fit(data=(X.numpy(), Y.numpy()), prior=1.0).latent(X).cov)
    elsewhere(lambda: fit(prior=1.0, seeds=2).latent(X).cov)
    elsewhere(lambda: fit().latent(X).cov)  # with the prior of the largest evidence
    with torch.device("cpu"):
        model = mlp(3, 4, 1).double()
    x, y = noise(6, 3), noise(6, 1)
    posterior = ll.laplace(model, (x, y), ll.Gaussian(torch.tensor([0.3])), prior=1.0, progress=False)

    def stored() -> Tensor:
        ll.save(posterior, path)
        return ll.load(path, model).latent(x).cov

    elsewhere(stored)
