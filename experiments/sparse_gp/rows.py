"""Rows of results, found by what they are about, with differences taken seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from experiments.common.rows import Mean
from experiments.sparse_gp.measure import EVERYTHING, MAP, ONE, PRIOR, SPARSE, SUBSET, TEMPERATURE, WIDE

NAMES = {"mlp": "MLP", "cnn": "CNN"}
CHOICES = {
    PRIOR: "chosen: prior precision",
    WIDE: "chosen: prior precision, wider grid",
    TEMPERATURE: "chosen: temperature",
    ONE: "as it is",
}
SCORES = ("nll", "ece")


@dataclass(frozen=True)
class Setting:
    """What both methods share where they are compared."""

    precision: float
    outputs: str
    choice: str


@dataclass(frozen=True)
class Results:
    """What `results.json` holds."""

    rows: list[dict[str, Any]]
    config: dict[str, Any]
    environment: dict[str, Any]

    @classmethod
    def of(cls, result: dict[str, Any]) -> Results:
        return cls(result["rows"], result["config"], result["environment"])

    @property
    def main(self) -> Setting:
        """The bar's setting, which is the paper's."""
        return Setting(self.config["precisions"][0], "independent", PRIOR)

    @property
    def networks(self) -> list[str]:
        return list(self.config["networks"])

    def values(self, **wanted: Any) -> dict[int, float]:
        """By seed, of the only row that is as wanted; nothing where there is none."""
        found = [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]
        if len(found) > 1:
            raise ValueError(f"{len(found)} rows have {wanted}")
        return dict(zip(found[0]["seeds"], found[0]["values"], strict=True)) if found else {}

    def of_method(
        self, network: str, setting: Setting, method: str, inducing: int | None, metric: str
    ) -> dict[int, float]:
        outputs = None if method == MAP else setting.outputs
        return self.values(
            network=network,
            precision=setting.precision,
            method=method,
            inducing=inducing,
            outputs=outputs,
            factor_choice=ONE if method == MAP else setting.choice,
            metric=metric,
        )

    def settings(self) -> Iterator[Setting]:
        """Those there are rows of, the bar's first."""
        for outputs, precision, choice in product(("independent", "coupled"), self.config["precisions"], CHOICES):
            setting = Setting(precision, outputs, choice)
            if any(self.sizes(network, setting) for network in self.networks):
                yield setting

    def sizes(self, network: str, setting: Setting) -> list[int]:
        """The M that were compared."""
        return [m for m in self.config["sizes"] if self.of_method(network, setting, SPARSE, m, "nll")]

    def difference(self, network: str, setting: Setting, size: int, metric: str) -> Mean:
        """Sparse less Subset."""
        sparse, subset = (self.of_method(network, setting, name, size, metric) for name in (SPARSE, SUBSET))
        return Mean.of(less(sparse, subset))

    def above_map(self, network: str, setting: Setting, method: str, size: int | None, metric: str) -> Mean:
        alone = self.of_method(network, setting, MAP, None, metric)
        return Mean.of(less(self.of_method(network, setting, method, size, metric), alone))

    def holds(self, setting: Setting, metric: str) -> tuple[int, int]:
        """In how many comparisons Sparse is at most Subset in the mean, and how many there are."""
        found = [
            self.difference(network, setting, size, metric).mean <= 0
            for network in self.networks
            for size in self.sizes(network, setting)
        ]
        return sum(found), len(found)

    def at_the_end(self, setting: Setting) -> tuple[int, int]:
        """How many of the chosen factors are the largest there is, and how many were chosen."""
        last = self.config["further_factors" if setting.choice == WIDE else "factors"][-1]
        pairs: list[tuple[str, int | None]] = [(EVERYTHING, None), *product((SUBSET, SPARSE), self.config["sizes"])]
        each = [
            self.of_method(network, setting, method, size, "factor")
            for network, (method, size) in product(self.networks, pairs)
        ]
        chosen = [factor for factors in each for factor in factors.values()]
        return sum(factor >= last * (1 - 1e-9) for factor in chosen), len(chosen)


def less(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Differences, seed by seed."""
    return [value - theirs[seed] for seed, value in ours.items()]


def mean_of(values: dict[int, float], scale: Callable[[float], float] = float) -> Mean | None:
    return Mean.of([scale(value) for value in values.values()]) if values else None
