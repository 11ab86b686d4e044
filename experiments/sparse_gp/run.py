"""Runs the cells that are not there yet, each written when it is done, and puts their rows together."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from benchmarks import environment
from experiments.sparse_gp.config import Cell, Config
from experiments.sparse_gp.measure import measure
from experiments.sparse_gp.problems import DATASET
from linlap.report.training import one_thread

RESULTS = Path(__file__).parent / "results"
_GROUP = ("network", "precision", "method", "inducing", "outputs", "factor_choice", "metric")


def run(config: Config, folder: Path = RESULTS, fresh: bool = False) -> dict[str, Any]:
    """All results, as `results.json` in the folder holds them: cells known to it are not measured again."""
    cells = folder / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    records = []
    with one_thread(), tqdm(config.cells(), unit="cell") as bar:
        threads = torch.get_num_threads()
        for cell in bar:
            path = cells / f"{cell.name}.json"
            record = None if fresh else _known(path, config)
            if record is None:
                record = _measured(cell, config, bar)
                _write(path, record)
            records.append(record)
    packages = {"scikit-learn": metadata.version("scikit-learn")}
    described = environment.describe(threads)
    described["packages"] |= packages
    described["seconds"] = round(sum(record["seconds"] for record in records), 1)
    described["cpu_seconds"] = round(sum(record["cpu_seconds"] for record in records), 1)
    result = {"environment": described, "config": asdict(config), "rows": list(summary(records))}
    _write(folder / "results.json", result)
    return result


def _known(path: Path, config: Config) -> dict[str, Any] | None:
    """A cell measured before, unless with other settings."""
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return record if record["config"] == config.of_a_cell() else None


def _measured(cell: Cell, config: Config, bar: Any) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    rows = measure(cell, config, lambda what: bar.set_postfix_str(f"{cell.name}: {what}"))
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    return {"cell": asdict(cell), "config": config.of_a_cell(), **spent, "rows": rows}


def summary(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row a quantity: its mean over seeds, the standard error of that, and the values themselves."""
    groups: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for record in records:
        for row in record["rows"]:
            group = tuple((record["cell"] | row)[name] for name in _GROUP)
            groups[group][record["cell"]["seed"]] = row["value"]
    for group, values in groups.items():
        mean, stderr = mean_and_error(list(values.values()))
        found = {"mean": mean, "stderr": stderr, "seeds": list(values), "values": list(values.values())}
        yield {"dataset": DATASET} | dict(zip(_GROUP, group, strict=True)) | found


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """The mean, and its standard error where there are two values or more."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def _write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all; of long lists one item a line, so that changes can be read."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in record["rows"])
    head = json.dumps({name: value for name, value in record.items() if name != "rows"}, indent=1, ensure_ascii=False)
    passing = path.with_suffix(".part")
    passing.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")
    passing.replace(path)
