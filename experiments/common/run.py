"""What an experiment is, and how one is run: cells, rows, the machine, the report."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Generic

import torch

from benchmarks import environment
from experiments.common.cells import Cell, Measured, Record, Store, Tick, lines, measured, missing, write_whole
from experiments.common.checks import Check
from experiments.common.rows import Row, summary
from linlap.errors import InputError
from linlap.report.files import folder
from linlap.report.training import one_thread

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Found:
    """All an experiment found, for its report."""

    rows: list[Row]
    records: list[Record]
    environment: dict[str, Any]
    store: Store


class Experiment(ABC, Generic[Cell]):
    """A table or figure of the paper: the cells it is measured by, and what is written of them.

    A frozen dataclass that holds all its settings; `make(quick, data)` of its module `experiments.NAME.experiment`
    makes it from what the command line gives.
    """

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """In the order to measure them in: a cell may read the arrays of those before it."""

    @abstractmethod
    def settings(self, cell: Cell) -> dict[str, Any]:
        """All that decides the cell's numbers, as JSON can hold it: with other settings it is measured again."""

    @abstractmethod
    def seconds(self, cell: Cell) -> float:
        """About how long the cell will take."""

    @abstractmethod
    def measure(self, cell: Cell, store: Store, tick: Tick) -> Measured:
        """Rows {method, metric, value}, with dataset, network and split where the cell's `about` does not say them."""

    @abstractmethod
    def checks(self, found: Found) -> list[Check]:
        """The paper's claims, held against what was found."""

    @abstractmethod
    def report(self, found: Found, out: Path) -> None:
        """Writes report.md and pictures to the folder."""


def names() -> list[str]:
    """The experiments there are: the folders with a module `experiment`."""
    return sorted(path.parent.name for path in ROOT.glob("*/experiment.py"))


def named(name: str, quick: bool, data: Path | None) -> Experiment[Any]:
    """The experiment of that name, as the command line wants it."""
    if name not in names():
        raise InputError(f"no experiment is called {name!r}; there are {', '.join(names())}.")
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data} is no folder; pass the one that holds the data sets' CSV files.")
    made: Experiment[Any] = import_module(f"experiments.{name}.experiment").make(quick, data)
    return made


def default_folder(name: str, quick: bool) -> Path:
    """Where results lie unless another folder is given; quick ones are not kept with the others."""
    results = ROOT / name / "results"
    return results / "quick" if quick else results


def reproduce(
    name: str,
    *,
    quick: bool = False,
    data: Path | None = None,
    out: Path | None = None,
    fresh: bool = False,
    say: Callable[[str], None] = print,
) -> Found:
    """Measures what is missing of an experiment, writes its results and its report, and gives them."""
    experiment = named(name, quick, data)
    with folder(default_folder(name, quick) if out is None else out) as place:
        say(_plan(experiment, Store(place / "cells"), fresh))
        found = run(experiment, place, fresh=fresh)
        for check in experiment.checks(found):
            say(str(check))
        say(f"{len(found.rows)} rows in {place / 'results.json'}, and what they say in {place / 'report.md'}.")
    return found


def run(experiment: Experiment[Cell], out: Path, *, fresh: bool = False, progress: bool = True) -> Found:
    """results.json, checks.json, environment.json and the report, in the folder `out`, which also keeps the cells."""
    store = Store(out / "cells")

    def measure(cell: Cell, tick: Tick) -> Measured:
        return experiment.measure(cell, store, tick)

    records = measured(experiment.cells(), experiment.settings, measure, store, fresh=fresh, progress=progress)
    found = Found(summary(records), records, described(records), store)
    write_whole(out / "results.json", lines(asdict(row) for row in found.rows) + "\n")
    write_whole(out / "checks.json", lines(asdict(check) for check in experiment.checks(found)) + "\n")
    write_whole(out / "environment.json", json.dumps(found.environment, indent=1) + "\n")
    experiment.report(found, out)
    return found


def described(records: Iterable[Record]) -> dict[str, Any]:
    """The machine, the versions, and the seconds that all cells took."""
    with one_thread():
        made = environment.describe(torch.get_num_threads())
    made["packages"] |= {"scikit-learn": metadata.version("scikit-learn")}
    for name in ("seconds", "cpu_seconds"):
        made[name] = round(sum(record[name] for record in records), 1)
    return made


def _plan(experiment: Experiment[Cell], store: Store, fresh: bool) -> str:
    cells = experiment.cells()
    todo = missing(cells, experiment.settings, store, fresh=fresh)
    if not todo:
        return f"All {len(cells)} cells are there already; only the report is written."
    seconds = sum(experiment.seconds(cell) for cell in todo)
    there = f"{len(cells) - len(todo)} of {len(cells)} cells are there already; " if len(todo) < len(cells) else ""
    return (
        f"{there}{len(todo)} to measure, about {_in_words(seconds)}. Each is kept when it is done: what is broken off "
        "goes on where it was."
    )


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
