"""Newton's method with a line search, for functions that are known through their values and slopes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.errors import InputError
from linlap.posteriors import FunctionPosterior


@dataclass(frozen=True, eq=False)
class State:
    """A place: its coordinates `[G, q]`, log p(y | f) − ½ mᵀ P0 m there with the first of the two by itself, and the
    derivative in the coordinates; `local` is what the landscape remembers of it."""

    position: Tensor
    objective: float
    log_likelihood: float
    gradient: Tensor
    local: Tensor


class Landscape(ABC):
    """A log joint density over the means that a process can have."""

    @abstractmethod
    def start(self) -> State:
        """Where the posterior is."""

    @abstractmethod
    def at(self, position: Tensor) -> State:
        """The state at coordinates `[G, q]`."""

    @abstractmethod
    def direction(self, state: State) -> Tensor:
        """Newton's step `[G, q]`: one that climbs."""

    @abstractmethod
    def slopes(self, state: State) -> tuple[float, float]:
        """‖Jᵀ r − P0 m‖, and the larger of the norms of the two."""

    @abstractmethod
    def moved(self, state: State) -> FunctionPosterior:
        """The posterior with its mean there, and what the data say of it taken there."""


@dataclass(frozen=True, eq=False)
class Ascent:
    """Where it ended, the objective after each step, and the norm of the gradient, by itself and relative."""

    state: State
    objective: Tensor
    norm: float
    relative: float
    steps: int
    converged: bool


def ascend(landscape: Landscape, tolerance: float, limit: int, progress: bool) -> Ascent:
    """Up to where the relative norm of the gradient meets the tolerance, or rounding lets nothing climb further."""
    state = landscape.start()
    norm, scale = landscape.slopes(state)
    trace: list[float] = []
    level = False
    with tqdm(total=limit, desc="mode of the process", leave=False, delay=1.0, disable=not progress) as bar:
        while norm > tolerance * scale and len(trace) < limit:
            direction = landscape.direction(state)
            level = _slope(state, direction) <= _rounding(state.objective)
            new = landscape.at(state.position + direction) if level else _climb(landscape, state, direction)
            new_norm, new_scale = landscape.slopes(new)
            if new is state or (level and not new_norm < norm):
                break
            state, norm, scale, level = new, new_norm, new_scale, False
            trace.append(state.objective)
            bar.set_postfix_str(f"gradient norm {norm:.2g}")
            bar.update()
    relative = norm / scale if scale else 0.0
    values = torch.tensor(trace or [state.objective], dtype=torch.float64)
    return Ascent(state, values, norm, relative, len(trace), level or norm <= tolerance * scale)


def _slope(state: State, direction: Tensor) -> float:
    return float((direction * state.gradient).sum())


def _rounding(objective: float) -> float:
    """What rounding may make of an objective."""
    return 1e-14 * (1 + abs(objective))


def _climb(landscape: Landscape, state: State, direction: Tensor) -> State:
    """The full step, or a shorter one where the slope along it has turned by then: no further than half as steep."""
    first, slack = _slope(state, direction), 10 * _rounding(state.objective)
    low, high, step = 0.0, float("inf"), 1.0
    for _ in range(100):
        new = landscape.at(state.position + step * direction)
        slope = _slope(new, direction)
        if not (new.objective >= state.objective - slack and slope >= -0.5 * first):
            high = step
        elif slope > 0.5 * first and step < 1.0:
            low = step
        else:
            return new
        step = 0.5 * (low + high)
    return state


def check_targets(posterior: FunctionPosterior, fit: float) -> None:
    """That these can be the targets the process was built on: log p(y | f) at its mean is what it was then."""
    before = posterior.totals.log_likelihood
    if not abs(fit - before) <= torch.finfo(posterior.network.dtype).eps ** 0.5 * (1 + abs(before)):
        raise InputError(
            f"log p(y | f) of these data is {fit:.6g}, and it was {before:.6g} of those the process was built on; pass "
            "the same data, with their targets in the same order, or build one on these with ll.gaussian_process."
        )
