"""The experiment: one cell for each set, network and group of methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.common.cells import Measured, Store, Tick
from experiments.common.checks import Check
from experiments.common.run import Experiment, Found
from experiments.uci import claims, report
from experiments.uci.config import FULL, QUICK, Config
from experiments.uci.cost import Cost
from experiments.uci.data import load
from experiments.uci.groups import GROUPS
from experiments.uci.problems import splits_of
from experiments.uci.sets import SETS


@dataclass(frozen=True)
class Cell:
    """A set, a network, and a group of methods that are measured together."""

    dataset: str
    network: str
    group: str

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.network}-{self.group}"

    @property
    def about(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Uci(Experiment[Cell]):
    """All cells of a configuration, or those that `wanted` lets pass."""

    config: Config
    data: Path | None
    device: torch.device
    wanted: Callable[[Cell], bool] = lambda cell: True

    def cells(self) -> list[Cell]:
        """Group by group, so that a run broken off has the first groups of all sets."""
        config = self.config
        every = (Cell(s, n, group) for group in GROUPS for s in config.sets for n in config.networks)
        return [cell for cell in every if self.wanted(cell)]

    def settings(self, cell: Cell) -> dict[str, Any]:
        decisive = ("splits", "precisions", *GROUPS[cell.group].settings)
        return {name: getattr(self.config, name) for name in decisive} | {"checksum": SETS[cell.dataset].checksum}

    def seconds(self, cell: Cell) -> float:
        return GROUPS[cell.group].seconds(Cost(SETS[cell.dataset], cell.network, self.config, self.device))

    def measure(self, cell: Cell, store: Store, tick: Tick) -> Measured:
        of = SETS[cell.dataset]
        tick("reading data")
        splits = splits_of(of, load(cell.dataset, self.data), self.config.splits, self.device)
        return GROUPS[cell.group].measure(splits, cell.network, self.config, store.folder / "weights", tick)

    def checks(self, found: Found) -> list[Check]:
        return claims.held(found.rows)

    def report(self, found: Found, out: Path) -> None:
        report.write(found, self.checks(found), self.config, out)


def make(quick: bool, data: Path | None) -> Uci:
    """As the command line wants it. Every file is read before the first cell, so that a bad one stops at once."""
    config = QUICK if quick else FULL
    for name in config.sets:
        load(name, data)
    return Uci(config, data, default_device())


def default_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
