"""What is run, as frozen values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

MAP, LAPLACE, REFINED, MFVI, HMC = "map", "laplace", "refined", "mfvi", "hmc"
Grid = tuple[float, ...]


def _line(first: float, last: float) -> Grid:
    return tuple(round(float(value), 4) for value in np.linspace(first, last, 10))


@dataclass(frozen=True)
class Cell:
    """What one group of methods makes of a network on a split."""

    dataset: str
    layers: int
    group: str
    split: int
    width: int = 50

    @property
    def network(self) -> str:
        return f"{self.layers}x{self.width}_tanh"

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.network}-{self.group}-{self.split}"

    @property
    def about(self) -> dict[str, Any]:
        return asdict(self) | {"network": self.network}

    @property
    def sizes(self) -> tuple[int, ...]:
        return (2, *[self.width] * self.layers, 1)

    @property
    def weights(self) -> int:
        return 3 * self.width + (self.layers - 1) * (self.width + 1) * self.width + self.width + 1


def width_of_mfvi(layers: int) -> int:
    """The paper's: with 50 units in each of three layers MFVI did not fit the data."""
    return 5 if layers == 3 else 50


@dataclass(frozen=True)
class Config:
    """The paper's protocol: `size` points to train with, as many to choose δ with; figures are of the first split."""

    size: int = 265
    steps: int = 3000
    precisions: Grid = _line(0.1, 2.0)
    precisions_of_one_layer: Grid = _line(0.02, 0.4)
    precisions_of_mfvi: Grid = tuple(float(value) for value in np.logspace(-3, 0, 10).round(6))
    rate: float = 1e-2
    rate_of_mfvi: float = 1e-1
    samples: int = 1000
    refinements: int = 250
    points: int = 100
    limit: float = 4.0
    hmc_samples: int = 150
    hmc_warmup: int = 150
    hmc_chains: int = 2

    def of(self, cell: Cell) -> dict[str, Any]:
        """What decides the cell's numbers."""
        return {name: value for name, value in asdict(self).items() if cell.group == HMC or not name.startswith("hmc")}

    def grid(self, cell: Cell) -> Grid:
        if cell.group == MFVI:
            return self.precisions_of_mfvi
        return self.precisions_of_one_layer if cell.layers == 1 else self.precisions

    def rate_at(self, rate: float) -> Callable[[int], float]:
        """Divided by 10 after 2400 of 3000 steps, and again after 2800."""
        first, second = 0.8 * self.steps, self.steps * 14 / 15
        return lambda step: rate * 0.1 ** ((step >= first) + (step >= second))
