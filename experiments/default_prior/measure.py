"""One cell: train a network, fit each structure, score the GLM predictive under each choice of the prior."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import linlap as ll
from experiments.default_prior.problems import PROBLEMS, network
from linlap.curvature import Structure
from linlap.report.training import falling

STRUCTURES: dict[str, Structure] = {"Full": ll.Full(), "Kron": ll.Kron(), "Diagonal": ll.Diagonal()}

_NONE = 1e-8  # a precision that changes nothing


@dataclass(frozen=True)
class Cell:
    """A problem, a network's activation, the prior precision it was trained with (0: none), and a seed for all."""

    problem: str
    activation: str
    training: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.problem}-{self.activation}-{self.training:g}-{self.seed}".replace(" ", "_")


def measure(cell: Cell, steps: int) -> list[dict[str, Any]]:
    """Rows {structure, prior, precision, nll}; the network alone has structure "MAP"."""
    problem = PROBLEMS[cell.problem]
    train, test = problem.split(cell.seed)
    model = network(train[0].shape[1], problem.outputs, cell.activation, cell.seed)
    data, prior = (train[0].float(), train[1]), cell.training or _NONE
    model = ll.train_map(model, data, problem.likelihood, prior, steps=steps, rate=falling(1e-2, steps), progress=False)
    model.double()
    rows: list[dict[str, Any]] = []
    for name, structure in STRUCTURES.items():
        fitted = ll.laplace(model, train, problem.likelihood, structure, 1.0, progress=False)
        if not rows:
            rows.append({"structure": "MAP", "prior": None, "nll": ll.metrics.nll(ll.MAP(fitted)(test[0]), test[1])})
        for prior, posterior in choices(fitted, train, cell.training):
            nll = ll.metrics.nll(ll.GLM(posterior)(test[0]), test[1])
            number = posterior.prior.precision if posterior.prior.is_uniform else None
            rows.append({"structure": name, "prior": prior, "precision": number, "nll": nll})
    return rows


def choices(fitted: Any, data: tuple[Tensor, Tensor], training: float) -> Iterator[tuple[str, Any]]:
    """The posterior under each prior."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ll.LinlapWarning)
        yield "left out", ll.select_prior(fitted, ll.LeaveOneOut(data))
        yield "evidence", ll.select_prior(fitted, ll.Evidence())
        yield "evidence by layer", ll.select_prior(fitted, ll.Evidence("layer"))
    yield "one", fitted
    if training:
        yield "training", fitted.with_prior(training)
