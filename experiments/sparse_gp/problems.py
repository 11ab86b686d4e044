"""scikit-learn's digits at 8×8 pixels, and the two networks trained on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import linlap as ll
from experiments.sparse_gp.config import Cell, Config
from linlap.report.training import falling, tanh_network

DATASET = "digits 8×8"


@dataclass(frozen=True)
class Trained:
    """A network at its MAP weights in float64, and the data `(x, y)` to train, to choose and to test with."""

    model: nn.Module
    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @property
    def weights(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def trained(cell: Cell, config: Config) -> Trained:
    """Trained in float32, which is faster; the processes get float64, for the small eigenvalues of their kernels."""
    data = load_digits()
    x, y = torch.as_tensor(data.images / data.images.max()), torch.as_tensor(data.target)
    parts = _split(y, config, cell.seed)
    model, x = _network(cell, x)
    rows = parts[0]
    model = ll.train_map(
        model,
        (x[rows].float(), y[rows]),
        ll.Categorical(),
        cell.precision,
        steps=config.steps,
        rate=falling(config.step_size, config.steps),
        progress=False,
    )
    return Trained(model.double(), *((x[rows], y[rows]) for rows in parts))


def _split(y: Tensor, config: Config, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train, to choose and to test with, each with every class in its share."""
    every = torch.arange(len(y)).numpy()
    train, rest = train_test_split(every, train_size=config.train, random_state=seed, stratify=y.numpy())
    valid, test = train_test_split(rest, train_size=config.valid, random_state=seed, stratify=y.numpy()[rest])
    return torch.as_tensor(train), torch.as_tensor(valid), torch.as_tensor(test)


def _network(cell: Cell, images: Tensor) -> tuple[nn.Module, Tensor]:
    """The network before training, and the images `[n, 8, 8]` as it takes them."""
    if cell.network == "mlp":
        return tanh_network((64, 50, 50, 10), cell.seed), images.flatten(1)
    if cell.network == "cnn":
        return _small_cnn(cell.seed), images.unsqueeze(1)
    raise ValueError(f"network={cell.network!r}; there are 'mlp' and 'cnn'.")


def _small_cnn(seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 12, 3, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(12 * 4 * 4, 10),
        )
