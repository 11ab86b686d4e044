"""Choosing the prior and the temperature by predictions of held-out data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from linlap import metrics
from linlap.checks import is_whole
from linlap.choice import AnyPosterior, PriorChoice
from linlap.data import as_batches
from linlap.errors import InputError, LinlapWarning, NotFiniteError
from linlap.integrators import Integrator
from linlap.posteriors import FunctionPosterior, WeightPosterior
from linlap.predictives import BNN, GLM
from linlap.prior import Prior
from linlap.validation.grid import Axis, Grid, Posterior, grid_of
from linlap.validation.predictions import Predictions, of_linear_model, of_networks

Objective = Literal["nll", "ece", "brier", "rmse", "crps"] | Callable[[td.Distribution, Tensor], float]
_OBJECTIVES: dict[str, Callable[[td.Distribution, Tensor], float]] = {
    "nll": metrics.nll,
    "ece": metrics.ece,
    "brier": metrics.brier,
    "rmse": metrics.rmse,
    "crps": metrics.crps,
}


@dataclass(frozen=True, eq=False)
class Minimum:
    """The posterior of least score, with all scores.

    `scores` has an axis for each of `axes`, in float64; `priors` are those tried, in the order of `scores.flatten()`;
    `at_edge` names the axes along which the least score lies at an end. `linlap.plotting.scores` draws it.
    """

    posterior: Any
    objective: str
    scores: Tensor
    axes: tuple[Axis, ...]
    priors: tuple[Prior, ...]
    place: tuple[int, ...]
    at_edge: tuple[str, ...]

    @property
    def values(self) -> tuple[float, ...]:
        """Where the least score lies, along each axis."""
        return tuple(axis.values[index] for axis, index in zip(self.axes, self.place, strict=True))

    def __repr__(self) -> str:
        at = ", ".join(f"{axis.name} = {value:.4g}" for axis, value in zip(self.axes, self.values, strict=True))
        edge = ", at the edge" if self.at_edge else ""
        return f"Minimum({self.objective} {float(self.scores[self.place]):.4g} at {at}, of {len(self.priors)}{edge})"


@dataclass(frozen=True, eq=False)
class Validation(PriorChoice):
    """The prior, the temperature, or both, under which held-out data are predicted best.

    `grid`: precisions δ for all weights, or `ll.Prior` objects. `bounds` instead: `points` precisions between two.
    `temperatures`: of the posterior, tried by themselves or, with a grid, each with each. With none of these, `points`
    multiples of the posterior's own prior from 1/1000 to 1000.

    `objective`: "nll", "ece", "brier", "rmse", "crps", or a function of the predictive distribution of all data and
    their targets; the smallest is best. `predictive`: `ll.GLM`, `ll.BNN`, or a function that makes one from a
    posterior, such as `lambda posterior: ll.BNN(posterior, samples=30)`. `integrator` is for the GLM.

    The network is linearised once for each input, whatever the size of the grid. All values are compared by the same
    noise. The mean stays where it is; `ll.refine` moves it.
    """

    data: Any = field(repr=False)
    grid: Sequence[float | Prior] | Tensor | None = None
    temperatures: Sequence[float] | Tensor | None = None
    bounds: tuple[float, float] | None = None
    points: int = 25
    objective: Objective = "nll"
    predictive: Callable[[Any], Any] = GLM
    integrator: Integrator | None = None
    batch_size: int = 256
    progress: bool = True

    def __post_init__(self) -> None:
        if not is_whole(self.points, 2):
            raise InputError(f"points={self.points!r}; pass how many values to try, at least 2, for instance 25.")
        if self.bounds is not None and self.grid is not None:
            raise InputError("grid and bounds exclude each other: pass the values, or the range they are to span.")
        _ = self._values()
        if not callable(self.objective) and self.objective not in _OBJECTIVES:
            raise InputError(
                f"objective={self.objective!r}; pass one of {', '.join(map(repr, _OBJECTIVES))}, or a function of "
                "a predictive distribution and y."
            )
        if not callable(self.predictive):
            raise InputError(f"predictive={self.predictive!r}; pass the class, ll.GLM or ll.BNN.")

    def select(self, posterior: AnyPosterior) -> AnyPosterior:
        """The posterior of least score. `minimise` gives all scores as well."""
        found: AnyPosterior = self.minimise(posterior).posterior
        return found

    def minimise(self, posterior: Posterior) -> Minimum:
        """The posterior of least score, with the scores of the whole grid. Warns if it lies at an end of that."""
        if not isinstance(posterior, WeightPosterior | FunctionPosterior):
            raise InputError(
                f"a {type(posterior).__name__} has no prior to choose; pass what ll.laplace or ll.gaussian_process "
                "returned."
            )
        grid = grid_of(posterior, self._values(), self.temperatures, self.points)
        with torch.no_grad():
            predictions, y = self._predictions(posterior, grid)
            found = [self._score(p, y, prior) for p, prior in zip(predictions, grid.all, strict=True)]
        scores = torch.tensor(found, dtype=torch.float64).view([len(axis.values) for axis in grid.axes])
        minimum = self._minimum(posterior, grid, scores)
        if minimum.at_edge:
            warnings.warn(
                f"the least {minimum.objective} lies at the edge of what was tried: {', '.join(minimum.at_edge)}. "
                "Pass values that go further.",
                LinlapWarning,
                stacklevel=3,
            )
        return minimum

    def _values(self) -> Any:
        if self.bounds is None:
            return self.grid
        try:
            low, high = (float(bound) for bound in self.bounds)
        except (TypeError, ValueError) as error:
            raise InputError(f"bounds={self.bounds!r}; pass two positive numbers, for instance (1e-3, 1e3).") from error
        if not 0 < low < high < math.inf:
            raise InputError(f"bounds={self.bounds!r}; pass two positive numbers, the smaller first.")
        return np.geomspace(low, high, self.points)

    def _predictions(self, posterior: Posterior, grid: Grid) -> Predictions:
        predictive = self.predictive(posterior)
        batches = as_batches(self.data, self.batch_size, posterior.network.device)
        if isinstance(predictive, GLM):
            if self.integrator is not None:
                predictive = GLM(posterior, self.integrator, predictive.diagonal)
            return of_linear_model(predictive, posterior, batches, grid, self.progress)
        if not isinstance(predictive, BNN):
            given = type(predictive).__name__
            raise InputError(f"a {given} cannot be scored under several priors; pass predictive=ll.GLM or ll.BNN.")
        if self.integrator is not None:
            raise InputError("ll.BNN runs the network under sampled weights: it takes no integrator. Leave it out.")
        return of_networks(predictive, posterior, batches, grid, self.progress)

    def _score(self, predictive: Any, y: Tensor, prior: Prior) -> float:
        of = _OBJECTIVES[self.objective] if isinstance(self.objective, str) else self.objective
        value = of(predictive, y)
        try:
            score = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"the objective returned {value!r}; it must return one number.") from error
        if math.isnan(score):
            raise NotFiniteError(f"the objective is NaN under {prior}; look at the predictions there.")
        return score

    def _minimum(self, posterior: Posterior, grid: Grid, scores: Tensor) -> Minimum:
        if not scores.isfinite().any():
            raise NotFiniteError("the objective is infinite under every prior; look at the predictions, or try others.")
        # Of equal scores the one of the smallest values, whatever the order of the grid.
        ends = [tuple(axis.values[i] for axis, i in zip(grid.axes, p, strict=True)) for p in np.ndindex(*scores.shape)]
        flat = scores.flatten().tolist()
        best = min(range(len(flat)), key=lambda index: (flat[index], ends[index]))
        place = tuple(int(index) for index in np.unravel_index(best, scores.shape))
        at_edge = tuple(
            f"{axis.name} = {axis.values[index]:g}"
            for axis, index in zip(grid.axes, place, strict=True)
            if axis.ordered and len(axis.values) > 1
            if axis.values[index] in (min(axis.values), max(axis.values))
        )
        name = self.objective if isinstance(self.objective, str) else getattr(self.objective, "__name__", "objective")
        priors = tuple(grid.all)
        return Minimum(posterior.with_prior(priors[best]), name, scores, grid.axes, priors, place, at_edge)
