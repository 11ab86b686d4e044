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
    """The faster of a few."""
    taken = []
    for _ in range(4):
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
    def small(self) -> float:
        """The side of the matrix that is factorised: weights or outputs."""
        return min(self.n * self.of.outputs, self.p)

    def training(self, networks: int, steps: int, draws: int = 1) -> float:
        """Forward and backward; elementwise work takes as long as a few tanh each unit."""
        units = sum(NETWORKS[self.network])
        rate = speed(self.device)
        return networks * steps * self.n * draws * (6 * self.p / rate.single + 6 * units / rate.tanh)

    def sampling(self) -> float:
        """Networks under sampled weights, at new inputs."""
        rate, inputs = speed(self.device), self.config.samples * self.n * _NEW
        return self.count * inputs * (2 * self.p / rate.single + 2 * sum(NETWORKS[self.network]) / rate.tanh)

    def fit(self) -> float:
        """One factorisation with what leads to it, and the laws of f at new inputs."""
        rows = self.n * self.of.outputs
        work = 2 * rows * self.p * self.small + self.small**3 + 4 * self.small * rows * (self.p + rows * _NEW)
        return self.count * work / speed(self.device).double

    def steps(self) -> float:
        """A factorisation in every step of a refinement."""
        rows, small = self.n * self.of.outputs, self.small
        each = small**3 / 3 + 4 * small**2 + 8 * rows * min(self.p, small)
        if small < rows:
            each += 2 * rows * small**2
        return self.count * self.config.refine_steps * each / speed(self.device).double

    def diagonal_steps(self) -> float:
        each = 10 * self.n * self.of.outputs**2 * self.p
        return self.count * self.config.refine_steps * each / speed(self.device).double
