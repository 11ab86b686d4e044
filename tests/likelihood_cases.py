"""Every likelihood, once. The contract tests run over this list: a new likelihood is one more line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap import likelihoods as lik
from linlap.likelihoods import Likelihood


@dataclass(frozen=True)
class Case:
    """A likelihood, how many outputs a network for it has here, and a way to draw labels for f."""

    name: str
    likelihood: Likelihood
    outputs: int
    labels: Callable[[Tensor], Tensor]

    def f(self, n: int = 5, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
        return torch.randn(n, self.outputs, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def real(columns: int) -> Callable[[Tensor], Tensor]:
    return lambda f: torch.linspace(-2, 2, len(f) * columns).reshape(len(f), columns).to(f)


def binary(f: Tensor) -> Tensor:
    return (torch.arange(f.numel()).reshape(f.shape) % 2).to(f)


def classes(f: Tensor) -> Tensor:
    return torch.arange(len(f)) % f.shape[1]


def counts(f: Tensor) -> Tensor:
    return torch.arange(f.numel()).reshape(f.shape).to(f)


CASES = [
    Case("gaussian", lik.Gaussian(0.3), 1, real(1)),
    Case("gaussian, noise an output", lik.Gaussian(torch.tensor([0.3, 1.0, 2.0])), 3, real(3)),
    Case("heteroscedastic", lik.HeteroscedasticGaussian(), 2, real(1)),
    Case("heteroscedastic, 2 means", lik.HeteroscedasticGaussian(), 4, real(2)),
    Case("bernoulli", lik.Bernoulli(), 1, binary),
    Case("bernoulli, 3 labels", lik.Bernoulli(), 3, binary),
    Case("categorical, 2", lik.Categorical(), 2, classes),
    Case("categorical, 6", lik.Categorical(), 6, classes),
    Case("poisson", lik.Poisson(), 1, counts),
    Case("poisson, 2 counts", lik.Poisson(), 2, counts),
]
NAMES = [case.name for case in CASES]
