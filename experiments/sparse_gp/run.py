"""Runs the cells that are not there yet, and puts their rows together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.common.cells import Measured, Store, Tick, measured, write_record
from experiments.common.rows import Mean, grouped
from experiments.common.run import described
from experiments.sparse_gp.config import Cell, Config
from experiments.sparse_gp.measure import measure
from experiments.sparse_gp.problems import DATASET

RESULTS = Path(__file__).parent / "results"
_GROUP = ("network", "precision", "method", "inducing", "outputs", "factor_choice", "metric")


def run(config: Config, folder: Path = RESULTS, fresh: bool = False) -> dict[str, Any]:
    """All results, as `results.json` in the folder holds them: cells known to it are not measured again."""

    def settings(cell: Cell) -> dict[str, Any]:
        return config.of_a_cell()

    def of(cell: Cell, tick: Tick) -> Measured:
        return Measured(measure(cell, config, tick))

    records = measured(config.cells(), settings, of, Store(folder / "cells"), fresh=fresh)
    result = {"environment": described(records), "config": asdict(config), "rows": list(summary(records))}
    write_record(folder / "results.json", result)
    return result


def summary(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row a quantity: its mean over seeds, the standard error of that, and the values themselves."""
    for about, values in grouped(records, _GROUP, "seed"):
        each = list(values.values())
        yield {"dataset": DATASET} | about | asdict(Mean.of(each)) | {"seeds": list(values), "values": each}
