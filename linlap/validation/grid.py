"""What is tried: priors, temperatures, or each with each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linlap.errors import InputError
from linlap.posteriors import FunctionPosterior, WeightPosterior
from linlap.prior import Prior

Posterior = WeightPosterior | FunctionPosterior
_MULTIPLES = (-3.0, 3.0)


@dataclass(frozen=True)
class Axis:
    """What varies along one axis of the scores. `ordered`: whether its values have a least and a greatest."""

    name: str
    values: tuple[float, ...]
    ordered: bool = True


@dataclass(frozen=True, eq=False)
class Grid:
    """Priors, each at every one of the temperatures; without those at its own."""

    priors: tuple[Prior, ...]
    temperatures: tuple[float, ...] | None
    axes: tuple[Axis, ...]

    def of(self, prior: Prior) -> tuple[float, ...]:
        """The temperatures at which a prior is tried."""
        return (float(prior.temperature),) if self.temperatures is None else self.temperatures

    @property
    def all(self) -> list[Prior]:
        """With their temperatures, in the order of the scores."""
        return [Prior(prior.precision, t) for prior in self.priors for t in self.of(prior)]


def grid_of(posterior: Posterior, values: Any, temperatures: Any, points: int) -> Grid:
    """The grid for a posterior, from `Validation`'s `grid` and `temperatures`."""
    own = posterior.prior
    heats = None if temperatures is None else _temperatures(temperatures)
    if values is None and heats is not None:
        return Grid((own,), heats, (Axis("temperature T", heats),))
    if values is None:
        priors = tuple(own.times(float(factor)) for factor in np.logspace(*_MULTIPLES, points))
    else:
        priors = tuple(v if isinstance(v, Prior) else Prior(v, own.temperature) for v in listed(values, "grid"))
    axis = _axis_of(priors, posterior, heats is None)
    return Grid(priors, heats, (axis,) if heats is None else (axis, Axis("temperature T", heats)))


def listed(values: Any, name: str) -> list[Any]:
    """Several values, of any iterable."""
    if isinstance(values, Prior | Mapping | str | float | int) or not isinstance(values, Iterable):
        raise InputError(f"{name}={values!r}; pass several values in a list, for instance [0.1, 1.0, 10.0].")
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    found = list(values) if isinstance(values, Iterable) else [values]
    if not found:
        raise InputError(f"{name} is empty; pass at least one value, for instance [0.1, 1.0, 10.0].")
    return found


def _temperatures(values: Any) -> tuple[float, ...]:
    return tuple(float(Prior(1.0, value).temperature) for value in listed(values, "temperatures"))


def _axis_of(priors: Sequence[Prior], posterior: Posterior, with_temperatures: bool) -> Axis:
    """By what the priors differ: one number, a multiple of the posterior's own, or neither."""
    network, own = posterior.network, posterior.prior
    heats = {float(prior.temperature) for prior in priors}
    if with_temperatures and len(heats) > 1:
        return Axis("place in the grid", tuple(map(float, range(len(priors)))), ordered=False)
    if all(prior.is_uniform for prior in priors):
        return Axis("prior precision δ", tuple(float(torch.as_tensor(prior.precision)) for prior in priors))
    ratios = [prior.over(own, network.shapes, network.device) for prior in priors]
    known = tuple(float(ratio) for ratio in ratios if ratio is not None)
    if len(known) == len(priors):
        return Axis("multiple of the posterior's prior", known)
    return Axis("place in the grid", tuple(map(float, range(len(priors)))), ordered=False)
