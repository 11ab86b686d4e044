"""How long a cell will take: its operations are counted, and the machine is asked how fast it is at such."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from experiments.uci.config import NETWORKS, Config
from experiments.uci.problems import weights
from experiments.uci.sets import Set
from experiments.uci.spaces import over_outputs, over_weights

_NEW = 0.3 / 0.7  # validation and test inputs for each that is trained on


@dataclass(frozen=True)
class Speed:
    """Multiplications and additions a second in float32 and in float64, and tanh a second."""

    single: float
    double: float
    tanh: float


@cache
def speed(device: torch.device) -> Speed:
    """Measured, in a fraction of a second."""
    size = 4096 if device.type == "cuda" else 512
    rates = []
    for dtype in (torch.float32, torch.float64):
        a = torch.randn(size, size, dtype=dtype, device=device)
        rates.append(2.0 * size**3 / _seconds(lambda a=a: a @ a, device))
    b = torch.randn(size * size, device=device)
    return Speed(*rates, size * size / _seconds(lambda: b.tanh(), device))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The fastest of some: others may be using the machine just now."""
    taken: list[float] = []
    while len(taken) < 5 or (sum(taken) < 0.1 and len(taken) < 100):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - start)
    return min(taken)


@dataclass(frozen=True)
class Cost:
    """Of one set and one network, for all splits and δ."""

    of: Set
    network: str
    config: Config
    device: torch.device

    @property
    def count(self) -> int:
        return len(self.config.splits) * len(self.config.precisions)

    @property
    def n(self) -> float:
        return 0.7 * self.of.rows

    @property
    def p(self) -> int:
        return weights(self.network, self.of)

    @property
    def rows(self) -> float:
        """N·C."""
        return self.n * self.of.outputs

    def training(self, networks: int, steps: int) -> float:
        """Forward and backward; elementwise work takes as long as a few tanh each unit."""
        rate, units = speed(self.device), sum(NETWORKS[self.network])
        return networks * steps * self.n * (6 * self.p / rate.single + 6 * units / rate.tanh)

    def networks(self) -> float:
        """Networks under sampled weights, at new inputs."""
        rate, inputs = speed(self.device), self.config.samples * self.n * _NEW
        return self.count * inputs * (2 * self.p / rate.single + 2 * sum(NETWORKS[self.network]) / rate.tanh)

    @property
    def sides(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the layers."""
        wide = NETWORKS[self.network]
        return list(zip((self.of.features, *wide), (*wide, self.of.outputs), strict=True))

    def fit(self, samples: int = 0) -> float:
        """One factorisation, the laws of f at new inputs, and samples of weights."""
        rows, p, new = self.rows, self.p, self.rows * _NEW
        outputs = over_outputs(self.n, self.of.outputs, self.sides, 1) + rows * (rows + 2 * p) * (new + samples) / 2
        weights = over_weights(self.n, self.sides, 1) + p**2 * (new + samples) / 2
        return self.count * 2 * (min(outputs, weights) + 10 * rows * p) / speed(self.device).double

    def refinement(self) -> float:
        """A factorisation in every step, and products with J."""
        steps = self.config.refine_steps
        outputs = over_outputs(self.n, self.of.outputs, self.sides, steps)
        weights = over_weights(self.n, self.sides, steps)
        return self.fit() + self.count * 2 * min(outputs, weights) / speed(self.device).double

    def diagonal_refinement(self) -> float:
        """Products with J and squares in every step, layer by layer; derivatives come from memory each time."""
        each = 8 * self.n * self.p + 60 * self.rows * sum(NETWORKS[self.network])
        return self.fit() + self.count * self.config.refine_steps * each / speed(self.device).double
