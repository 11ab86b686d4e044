"""Means over splits, beside the paper's."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.common.cells import Record

PAPER = Path(__file__).parents[1] / "paper.json"
_HIGHER_IS_BETTER = ("accuracy", "accuracy_percent", "ood_auc")
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error; None for a single value."""

    mean: float
    stderr: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error)


@dataclass(frozen=True)
class Row:
    """A score of a method: its mean over splits and standard error, and the paper's where it has one."""

    dataset: str
    network: str
    method: str
    metric: str
    mean: float
    stderr: float | None
    paper_mean: float | None
    paper_stderr: float | None
    splits: int

    @property
    def ours(self) -> Mean:
        return Mean(self.mean, self.stderr)

    @property
    def paper(self) -> Mean | None:
        return None if self.paper_mean is None else Mean(self.paper_mean, self.paper_stderr)

    @property
    def difference(self) -> float | None:
        """Ours less the paper's in standard errors, both combined."""
        if self.paper_mean is None:
            return None
        error = math.hypot(self.stderr or 0.0, self.paper_stderr or 0.0)
        apart = self.mean - self.paper_mean
        return apart / error if error else math.copysign(math.inf, apart) if apart else 0.0

    def reproduces(self, within: float = 2.0) -> bool | None:
        """Whether ours is within so many standard errors of the paper's or better; None where there is none."""
        if self.difference is None:
            return None
        worse = -self.difference if self.metric in _HIGHER_IS_BETTER else self.difference
        return worse <= within


def grouped(
    records: Iterable[Record], group: Sequence[str], by: str
) -> Iterator[tuple[dict[str, Any], dict[Any, float]]]:
    """Values of all cells' rows, by `by`, for each combination of what the names in `group` say of cell or row."""
    found: dict[tuple[Any, ...], dict[Any, float]] = defaultdict(dict)
    for record in records:
        for row in record["rows"]:
            said = record["cell"] | row
            found[tuple(said[name] for name in group)][said[by]] = row["value"]
    for key, values in found.items():
        yield dict(zip(group, key, strict=True)), values


def summary(records: Iterable[Record]) -> list[Row]:
    """One row a score, from rows {dataset, network, method, metric, split, value} (or their cells say some of it)."""
    made = []
    for about, values in grouped(records, ("dataset", "network", "method", "metric"), "split"):
        ours = Mean.of(list(values.values()))
        key = (about["dataset"], about["network"], about["method"], about["metric"])
        theirs = paper().get(key)
        mean, stderr = (None, None) if theirs is None else (theirs.mean, theirs.stderr)
        made.append(Row(*key, ours.mean, ours.stderr, mean, stderr, len(values)))
    return made


@cache
def paper() -> dict[Key, Mean]:
    """The paper's printed numbers, by (dataset, network, method, metric)."""
    read = json.loads(PAPER.read_text(encoding="utf-8"))
    return {
        (row["dataset"], row["network"], row["method"], row["metric"]): Mean(row["mean"], row["stderr"]) for row in read
    }


def read_rows(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
