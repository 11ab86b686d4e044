"""The banana: networks of 1, 2 and 3 layers, every predictive of each, on the plane and on test data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.banana import claims, report
from experiments.banana.config import HMC, LAPLACE, MAP, MFVI, REFINED, Cell, Config, width_of_mfvi
from experiments.banana.data import Points, points
from experiments.banana.measure import measure
from experiments.common.cells import Measured, Store, Tick
from experiments.common.checks import Check
from experiments.common.run import Experiment, Found


@dataclass(frozen=True)
class Banana(Experiment[Cell]):
    """`splits` of the points; the figures are of the first, and so is HMC of networks with `hmc` layers."""

    points: Points
    config: Config = field(default_factory=Config)
    layers: tuple[int, ...] = (1, 2, 3)
    splits: int = 1
    hmc: tuple[int, ...] = (1,)

    def cells(self) -> Sequence[Cell]:
        """Split by split, so that a run broken off has all networks on some of the splits."""
        return [cell for split in range(self.splits) for cell in self._of_split(split)]

    def _of_split(self, split: int) -> list[Cell]:
        cells = [Cell(self.points.name, layers, g, split) for layers in self.layers for g in (MAP, LAPLACE, REFINED)]
        variational = [Cell(self.points.name, layers, MFVI, split, width_of_mfvi(layers)) for layers in self.layers]
        sampled = [Cell(self.points.name, layers, HMC, split) for layers in self.hmc if split == 0]
        return cells + variational + sampled

    def settings(self, cell: Cell) -> dict[str, Any]:
        data = hashlib.sha256(self.points.x.numpy().tobytes() + self.points.y.numpy().tobytes())
        return self.config.of(cell) | {"data": data.hexdigest()}

    def seconds(self, cell: Cell) -> float:
        """As measured on one thread of a machine of 2 cores, by steps and by samples at so many places."""
        config = self.config
        if cell.group == HMC:
            return config.hmc_chains * (config.hmc_samples + config.hmc_warmup) * 0.1 * cell.layers
        if cell.group in (MAP, MFVI):
            each = 1.2e-4 if cell.group == MAP else 4e-4
            return config.steps * len(config.grid(cell)) * cell.layers * cell.width / 50 * each
        places = len(self.points.y) + (config.points**2 if cell.split == 0 else 0)
        return 2 + places * cell.layers * (config.samples * 7e-7 if cell.group == LAPLACE else 1e-4)

    def measure(self, cell: Cell, store: Store, tick: Tick) -> Measured:
        return measure(cell, self.config, self.points, store, tick)

    def checks(self, found: Found) -> list[Check]:
        return claims.checks(found.rows)

    def report(self, found: Found, out: Path) -> None:
        report.write(self, found, self.checks(found), out)


def make(quick: bool, data: Path | None) -> Banana:
    """On the folder's 5300 points, or on as many that are made."""
    if quick:
        return Banana(points(data), Config(steps=500, samples=100, refinements=100, points=40), hmc=())
    return Banana(points(data))
