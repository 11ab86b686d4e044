"""What methods predict over splits and δ, and how well."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from experiments.common.cells import Arrays, Measured
from experiments.uci.config import Config
from experiments.uci.problems import Splits
from experiments.uci.scores import Choice, Scored


@dataclass
class Predictions:
    """f̄ of each method at validation and test inputs, as they come, a few networks at a time."""

    splits: Splits
    config: Config
    parts: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def add(self, method: str, f: Tensor) -> None:
        self.parts[method].append(f)

    def whole(self, method: str) -> Tensor:
        """f̄ `[M, n, C]`."""
        return torch.cat(self.parts[method])

    def measured(self, chosen: dict[str, tuple[str, Choice]] | None = None) -> Measured:
        """Rows of every method at its own δ; `chosen` names further ones: whose predictions, and at which δ."""
        scores = {method: scored(self.splits, self.whole(method)) for method in self.parts}
        rows = [row for method, each in scores.items() for row in each.rows(method, self.config.splits)]
        for method, (of, places) in (chosen or {}).items():
            rows += scores[of].rows(method, self.config.splits, places)
        return Measured(rows, _sweeps(scores))


def scored(splits: Splits, f: Tensor) -> Scored:
    """Of f̄ `[M, n, C]` at the new inputs."""
    each = f.unflatten(0, (len(splits.test[1]), -1))
    valid, test = each.split([splits.valid[0].shape[1], splits.test[0].shape[1]], 2)
    return Scored.of(splits.likelihood, (valid, splits.valid[1]), (test, splits.test[1]))


def _sweeps(scores: dict[str, Scored]) -> Arrays:
    """NLL `[splits, δ]` on validation and on test data."""
    made: Arrays = {}
    for method, each in scores.items():
        made[f"{method}.valid"] = each.valid.astype(np.float32)
        made[f"{method}.nll"] = each.test[0].astype(np.float32)
    return made
