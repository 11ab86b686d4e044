"""MAP, BNN and GLM predictives side by side: their scores, a table of them, and what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from torch import distributions as td

from linlap import metrics
from linlap.ood import ood_auc
from linlap.posteriors import WeightPosterior
from linlap.predictives import BNN, GLM, MAP
from linlap.report.datasets import Problem

Predictive = MAP | BNN | GLM


@dataclass(frozen=True)
class Scores:
    """How well one predictive of one posterior does on a problem."""

    problem: str
    structure: str
    predictive: str
    accuracy: float
    nll: float
    ece: float
    ood_auc: float | None


@dataclass(frozen=True)
class Prediction:
    """What one predictive says on the test inputs, and on the shifted ones where there are any."""

    inside: td.Distribution
    outside: td.Distribution | None


def predictives(posterior: WeightPosterior, samples: int) -> dict[str, Predictive]:
    """The three predictives of a posterior, by name."""
    return {"MAP": MAP(posterior), "BNN": BNN(posterior, samples), "GLM": GLM(posterior)}


def predict(predictive: Predictive, problem: Problem) -> Prediction:
    outside = None if problem.shift is None else predictive(problem.shift.x)
    return Prediction(predictive(problem.x_test), outside)


def score(prediction: Prediction, problem: Problem, structure: str, predictive: str) -> Scores:
    p, y = prediction.inside, problem.y_test
    apart = None if prediction.outside is None else ood_auc(p, prediction.outside)
    return Scores(
        problem.name, structure, predictive, metrics.accuracy(p, y), metrics.nll(p, y), metrics.ece(p, y), apart
    )


def table(rows: Sequence[Scores]) -> Table:
    """All scores, a line a predictive, a rule between posteriors."""
    grid = Table(box=box.SIMPLE_HEAD, title="Scores on test data", title_justify="left", title_style="bold")
    for heading in ("data", "posterior", "predictive"):
        grid.add_column(heading)
    for heading in ("accuracy ↑", "NLL ↓", "ECE ↓", "OOD-AUC ↑"):
        grid.add_column(heading, justify="right")
    for place, row in enumerate(rows):
        before, after = rows[place - 1] if place else None, rows[place + 1] if place + 1 < len(rows) else None
        new_problem = before is None or before.problem != row.problem
        new_posterior = new_problem or before is None or before.structure != row.structure
        grid.add_row(
            row.problem if new_problem else "",
            row.structure if new_posterior else "",
            row.predictive,
            f"{row.accuracy:.3f}",
            f"{row.nll:.3f}",
            f"{row.ece:.3f}",
            "–" if row.ood_auc is None else f"{row.ood_auc:.3f}",
            style="bold" if row.predictive == "GLM" else None,
            end_section=after is None or after.structure != row.structure,
        )
    return grid


@dataclass(frozen=True)
class Comparison:
    """NLL of the BNN and of the GLM predictive of one posterior, as multiples of that of the MAP."""

    problem: str
    structure: str
    bnn: float
    glm: float

    @property
    def name(self) -> str:
        return f"{self.problem} {self.structure}"


@dataclass(frozen=True)
class Verdict:
    """Whether the BNN predictive underfits where the GLM predictive does not.

    A predictive keeps up with MAP if its NLL is at most `slack` times that of the MAP.
    """

    cases: tuple[Comparison, ...]
    slack: float = 1.25

    @staticmethod
    def of(rows: Sequence[Scores]) -> Verdict:
        nll = {(row.problem, row.structure, row.predictive): row.nll for row in rows}
        posteriors = dict.fromkeys((row.problem, row.structure) for row in rows)
        return Verdict(
            tuple(
                Comparison(*key, nll[(*key, "BNN")] / nll[(*key, "MAP")], nll[(*key, "GLM")] / nll[(*key, "MAP")])
                for key in posteriors
            )
        )

    @property
    def keeping_up(self) -> list[Comparison]:
        return [case for case in self.cases if case.glm <= self.slack]

    @property
    def holds(self) -> bool:
        """BNN underfits and GLM does better with every posterior, and GLM keeps up on every problem with some."""
        return all(case.bnn > self.slack and case.glm < case.bnn for case in self.cases) and {
            case.problem for case in self.keeping_up
        } == {case.problem for case in self.cases}

    def __str__(self) -> str:
        if not self.holds:
            listed = "; ".join(f"{case.name} {case.bnn:.2f} and {case.glm:.2f}" for case in self.cases)
            return (
                f"What the table shows: not the paper's point. NLL of BNN and of GLM in multiples of MAP's: {listed}."
            )
        behind = [case for case in self.cases if case not in self.keeping_up]
        rest = ""
        if behind:
            names = ", ".join(case.name for case in behind)
            rest = f"; with {names} it lies between the two, at {_range(case.glm for case in behind)}"
        return (
            f"What the table shows: the BNN predictive underfits, its NLL is {_range(case.bnn for case in self.cases)} "
            f"times MAP's; the GLM predictive does not, it is at {_range(case.glm for case in self.keeping_up)} with "
            f"{len(self.keeping_up)} of {len(self.cases)} posteriors{rest}."
        )


def _range(values: Iterable[float]) -> str:
    """The values from least to largest, in words."""
    ends = sorted({f"{value:.2f}" for value in values}, key=float)
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
