"""What is run, as frozen values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


def _decades(first: float, last: float, points: int) -> tuple[float, ...]:
    return tuple(float(factor) for factor in np.logspace(first, last, points))


@dataclass(frozen=True)
class Cell:
    """One trained network: which one, with which prior precision δ, and the seed of its split, of its first weights
    and of the inducing inputs."""

    network: str
    precision: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.network}-{self.precision:g}-{self.seed}"

    @property
    def about(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Config:
    """The experiment. `precisions` starts with the main δ, whose networks do best alone on validation data.

    `factors`, the paper's, are tried on validation data, on the prior precision or as inverse temperatures, each with
    `draws` samples of f an input; `further_factors` show where the paper's end too early. Test scores take the default
    of `ll.GLM`. Coupled outputs are compared under the main δ.
    """

    networks: tuple[str, ...] = ("mlp", "cnn")
    precisions: tuple[float, ...] = (0.3, 1.0, 0.1)
    sizes: tuple[int, ...] = (50, 100, 200, 400)
    coupled_up_to: int = 200
    seeds: int = 5
    train: int = 900
    valid: int = 300
    steps: int = 800
    step_size: float = 1e-2
    factors: tuple[float, ...] = _decades(-1, 3, 13)
    further_factors: tuple[float, ...] = _decades(10 / 3, 6, 9)
    draws: int = 250

    def cells(self) -> list[Cell]:
        """Seed by seed, so that a run broken off has all networks with some of the seeds."""
        seeds = range(self.seeds)
        return [Cell(network, d, seed) for seed in seeds for d in self.precisions for network in self.networks]

    def of_a_cell(self) -> dict[str, Any]:
        """The part that decides what a cell's rows are, as JSON gives it back."""
        listed = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        decisive = {name: v for name, v in listed.items() if name not in ("networks", "precisions", "seeds")}
        return decisive | {"main_precision": self.precisions[0]}


FULL = Config()
QUICK = Config(seeds=2, sizes=(50, 100))
