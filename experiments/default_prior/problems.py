"""Ten small problems: five of scikit-learn's bundled sets and five generated ones, and the networks trained on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import linlap as ll
from linlap.likelihoods import Likelihood
from linlap.report.datasets import banana

Draw = Callable[[int], tuple[Tensor, Tensor]]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "ReLU": nn.ReLU}


@dataclass(frozen=True)
class Problem:
    """Where data come from for a seed, how many to train on, and the likelihood over `outputs` outputs."""

    draw: Draw
    train: int
    likelihood: Likelihood
    outputs: int = 1

    def split(self, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """To train and to test; inputs, and real targets, in the units of the training part."""
        x, y = self.draw(seed)
        labels = y.numpy() if self.outputs > 1 or isinstance(self.likelihood, ll.Bernoulli) else None
        parts = train_test_split(
            torch.arange(len(y)).numpy(), train_size=self.train, random_state=seed, stratify=labels
        )
        train, test = (torch.as_tensor(part) for part in parts)
        x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(1e-6)
        if isinstance(self.likelihood, ll.Gaussian):
            y = (y - y[train].mean()) / y[train].std()
        test = test[:300]
        return (x[train], y[train]), (x[test], y[test])


def _bundled(load: Callable[..., tuple[object, object]], real: bool = False) -> Draw:
    def draw(seed: int) -> tuple[Tensor, Tensor]:
        x, y = load(return_X_y=True)
        return torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64 if real else torch.int64)

    return draw


def _digits(seed: int) -> tuple[Tensor, Tensor]:
    """At 4×4 pixels."""
    data = datasets.load_digits()
    images = torch.as_tensor(data.images, dtype=torch.float64).unsqueeze(1)
    return nn.functional.avg_pool2d(images, 2).flatten(1), torch.as_tensor(data.target)


def _moons(seed: int) -> tuple[Tensor, Tensor]:
    x, y = datasets.make_moons(1100, noise=0.3, random_state=seed)
    return torch.as_tensor(x), torch.as_tensor(y, dtype=torch.float64)


def _banana(seed: int) -> tuple[Tensor, Tensor]:
    problem = banana(seed, 265, 1000)
    return torch.cat([problem.x, problem.x_test]).double(), torch.cat([problem.y, problem.y_test]).double()


def _waves(seed: int) -> tuple[Tensor, Tensor]:
    """Regression on a line, with a gap."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(1060, 1, generator=generator, dtype=torch.float64) - 2
    x = torch.where(x.abs() < 0.4, x.sign() * (x.abs() + 1), x)
    return x, (3 * x[:, 0]).sin() + 0.3 * torch.randn(1060, generator=generator, dtype=torch.float64)


def _friedman(seed: int) -> tuple[Tensor, Tensor]:
    x, y = datasets.make_friedman1(1200, noise=1.0, random_state=seed)
    return torch.as_tensor(x), torch.as_tensor(y)


def _counts(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(1080, 2, generator=generator, dtype=torch.float64)
    rate = (x[:, 0].sin() + 0.3 * x[:, 1]).exp()
    return x, torch.poisson(rate, generator=generator)


def _binary(draw: Draw) -> Draw:
    def labels(seed: int) -> tuple[Tensor, Tensor]:
        x, y = draw(seed)
        return x, y.double()

    return labels


# Noise is known where data are generated (in units of the targets' deviation); diabetes' is that of a linear fit.
PROBLEMS: dict[str, Problem] = {
    "breast cancer": Problem(_binary(_bundled(datasets.load_breast_cancer)), 300, ll.Bernoulli()),
    "iris": Problem(_bundled(datasets.load_iris), 90, ll.Categorical(), 3),
    "wine": Problem(_bundled(datasets.load_wine), 100, ll.Categorical(), 3),
    "digits 4×4": Problem(_digits, 400, ll.Categorical(), 10),
    "diabetes": Problem(_bundled(datasets.load_diabetes, real=True), 250, ll.Gaussian(0.7)),
    "moons": Problem(_moons, 100, ll.Bernoulli()),
    "banana": Problem(_banana, 265, ll.Bernoulli()),
    "waves": Problem(_waves, 60, ll.Gaussian(0.3 / math.sqrt(0.09 + 0.5))),
    "friedman": Problem(_friedman, 200, ll.Gaussian(0.2)),
    "counts": Problem(_counts, 80, ll.Poisson()),
}


def network(inputs: int, outputs: int, activation: str, seed: int) -> nn.Sequential:
    """Two hidden layers of 16."""
    act = ACTIVATIONS[activation]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs, 16), act(), nn.Linear(16, 16), act(), nn.Linear(16, outputs)]
        return nn.Sequential(*layers)
