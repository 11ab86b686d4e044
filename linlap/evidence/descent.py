"""Minimisation of a smooth convex function within bounds: by Newton's method where second derivatives are known, by
L-BFGS where they are not, with a line search that follows the bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

_LONGEST_STEP = 4.0  # in any one logarithm: beyond it a quadratic model of exponentials means nothing
_HALVINGS = 30
_PAIRS = 20
_ROUNDING = 1e-13
_RIDGE = 1e-12


class Hessian(ABC):
    """Second derivatives `[k, k]`, positive semi-definite."""

    @abstractmethod
    def half_with(self, diagonal: Tensor) -> Hessian:
        """Half of it, after `[k]` is added to its diagonal."""

    @abstractmethod
    def solve(self, v: Tensor, free: Tensor) -> Tensor:
        """Its inverse times v `[k]` among the free coordinates, zero at the others."""


@dataclass(frozen=True, eq=False)
class DenseHessian(Hessian):
    """`matrix` `[k, k]`."""

    matrix: Tensor

    def half_with(self, diagonal: Tensor) -> DenseHessian:
        return DenseHessian(0.5 * (self.matrix + diagonal.diag()))

    def solve(self, v: Tensor, free: Tensor) -> Tensor:
        pair = free.unsqueeze(0) & free.unsqueeze(1)
        matrix = self.matrix * pair
        diagonal = matrix.diagonal()
        diagonal += torch.where(free, _RIDGE * (1 + diagonal), 1.0)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if info.any():  # flat to rounding
            return v * free
        return torch.cholesky_solve((v * free).unsqueeze(1), factor).squeeze(1)


@dataclass(frozen=True, eq=False)
class ArrowHessian(Hessian):
    """Of k coordinates the first k − m meet only the last m: `diagonal` `[k − m]`, `cross` `[k − m, m]`, `corner`."""

    diagonal: Tensor
    cross: Tensor
    corner: Tensor

    def half_with(self, diagonal: Tensor) -> ArrowHessian:
        k = len(self.diagonal)
        corner = self.corner + diagonal[k:].diag()
        return ArrowHessian(0.5 * (self.diagonal + diagonal[:k]), 0.5 * self.cross, 0.5 * corner)

    def solve(self, v: Tensor, free: Tensor) -> Tensor:
        k = len(self.diagonal)
        many, few = free[:k], free[k:]
        shaft = torch.where(many, self.diagonal * (1 + _RIDGE) + _RIDGE, 1.0)
        cross = self.cross * many.unsqueeze(1) * few
        scaled = cross / shaft.unsqueeze(1)
        head = DenseHessian(self.corner * few * few.unsqueeze(1) - cross.mT @ scaled)
        rhs = v * free
        last = head.solve(rhs[k:] - scaled.mT @ rhs[:k], few) if len(few) else rhs[k:]
        return torch.cat([rhs[:k] / shaft - scaled @ last, last])


@dataclass(frozen=True, eq=False)
class Local:
    """A function at a point: its value, gradient `[k]`, and second derivatives where they are known."""

    value: float
    gradient: Tensor
    hessian: Hessian | None = None


Function = Callable[[Tensor], Local]


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a minimisation ended and how it got there: values and the largest free slopes, start included."""

    x: Tensor
    values: tuple[float, ...]
    slopes: tuple[float, ...]
    converged: bool


@dataclass
class _Memory:
    """The latest steps and what they changed in the gradient, for L-BFGS."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def note(self, step: Tensor, change: Tensor) -> None:
        if float(step @ change) > 1e-14 * float(change @ change):
            self.pairs = [*self.pairs[1 - _PAIRS :], (step, change)]

    def direction(self, gradient: Tensor, free: Tensor) -> Tensor:
        """−H⁻¹ g among the free coordinates, by the two loops over pairs."""
        q = gradient * free
        usable = [(s * free, y * free) for s, y in self.pairs]
        usable = [(s, y) for s, y in usable if float(s @ y) > 1e-14 * float(y @ y)]
        weights = []
        for s, y in reversed(usable):
            weights.append((s @ q) / (s @ y))
            q = q - weights[-1] * y
        if usable:
            s, y = usable[-1]
            q = q * ((s @ y) / (y @ y))
        for (s, y), weight in zip(usable, reversed(weights), strict=True):
            q = q + s * (weight - (y @ q) / (s @ y))
        return -q * free


def minimise(
    function: Function, start: Tensor, lower: Tensor, upper: Tensor, tolerance: float, iterations: int
) -> Descent:
    """From `start` until no free slope exceeds `tolerance`, or nothing moves any more."""
    x = start.clamp(lower, upper)
    here, memory = function(x), _Memory()
    values, slopes = [here.value], [_slope(x, here.gradient, lower, upper)]
    for _ in range(iterations):
        if slopes[-1] <= tolerance:
            break
        free = _free(x, here.gradient, lower, upper)
        found = _next(function, x, here, _directions(here, memory, free), (lower, upper))
        if found is None:
            break
        there, local = found
        memory.note(there - x, local.gradient - here.gradient)
        x, here = there, local
        values.append(here.value)
        slopes.append(_slope(x, here.gradient, lower, upper))
    return Descent(x, tuple(values), tuple(slopes), slopes[-1] <= tolerance)


def _free(x: Tensor, gradient: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Where a step downhill does not lead out of the bounds."""
    return ~(((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0)))


def _slope(x: Tensor, gradient: Tensor, lower: Tensor, upper: Tensor) -> float:
    return float((gradient * _free(x, gradient, lower, upper)).abs().max()) if len(x) else 0.0


def _directions(here: Local, memory: _Memory, free: Tensor) -> Iterator[Tensor]:
    """The best one known first, the gradient's last."""
    if here.hessian is not None:
        yield -here.hessian.solve(here.gradient, free)
    elif memory.pairs:
        yield memory.direction(here.gradient, free)
    steepest = -here.gradient * free
    yield steepest / steepest.abs().max()


def _next(
    function: Function, x: Tensor, here: Local, directions: Iterator[Tensor], bounds: tuple[Tensor, Tensor]
) -> tuple[Tensor, Local] | None:
    """A lower point along the first direction that leads to one."""
    for direction in directions:
        step = direction * (_LONGEST_STEP / direction.abs().max().clamp_min(_LONGEST_STEP))
        if not float(here.gradient @ step) < 0:
            continue
        for halving in range(_HALVINGS):
            there = (x + step * 0.5**halving).clamp(*bounds)
            local = function(there)
            if _is_lower(here, local, there - x):
                return there, local
    return None


def _is_lower(here: Local, there: Local, step: Tensor) -> bool:
    """Lower by a share of what the slope promises; or, where rounding hides that, with less slope left."""
    promised = float(here.gradient @ step)
    if not there.value < float("inf") or promised >= 0:
        return False
    if there.value <= here.value + 1e-4 * promised:
        return True
    left = float(there.gradient @ step)
    return there.value <= here.value + _ROUNDING * (1 + abs(here.value)) and abs(left) < 0.9 * abs(promised)
