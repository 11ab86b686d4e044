"""Scores of networks under one method, on validation and test data, and the choice of δ by the former."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linlap import metrics
from linlap.likelihoods import ClassLikelihood

METRICS = {"nll": metrics.nll, "accuracy": metrics.accuracy, "ece": metrics.ece}
Scores = NDArray[np.float64]
Choice = NDArray[np.int64]


@dataclass(frozen=True)
class Scored:
    """Validation NLL `[splits, δ]`, and every score on test data `[scores, splits, δ]`."""

    valid: Scores
    test: Scores

    @classmethod
    def of(cls, likelihood: ClassLikelihood, valid: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Scored:
        """From f̄ `[splits, δ, n, C]`, where p(y | f̄) is the predictive, and y `[splits, n]`."""
        return cls(_each(likelihood, *valid, ["nll"])[0], _each(likelihood, *test, list(METRICS)))

    def chosen(self) -> Choice:
        """For each split the place of the δ of least validation NLL."""
        return least(self.valid)

    def rows(self, method: str, splits: tuple[int, ...], chosen: Choice | None = None) -> Iterator[dict[str, Any]]:
        """Test scores of every split at its δ."""
        places = self.chosen() if chosen is None else chosen
        for name, scores in zip(METRICS, self.test, strict=True):
            for seed, each, place in zip(splits, scores, places, strict=True):
                yield {"method": method, "metric": name, "split": seed, "value": float(f"{each[place]:.7g}")}


def least(values: Scores) -> Choice:
    """The place of the least in every row; what is not a number is never chosen."""
    return np.where(np.isnan(values), np.inf, values).argmin(1)


def _each(likelihood: ClassLikelihood, f: Tensor, y: Tensor, names: list[str]) -> Scores:
    f, y = f.double().cpu(), y.cpu()
    found = np.full((len(names), *f.shape[:2]), np.nan)
    for split, index in np.ndindex(*f.shape[:2]):
        one = f[split, index]
        if torch.isfinite(one).all():
            predictive = likelihood.observe(one)
            found[:, split, index] = [METRICS[name](predictive, y[split]) for name in names]
    return found
