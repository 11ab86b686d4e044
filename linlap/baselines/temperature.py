"""Temperature scaling: one number that makes a trained network's probabilities calibrated."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from linlap.data import as_batches
from linlap.errors import InputError, LinlapWarning
from linlap.fit import check_kinds
from linlap.likelihoods import ClassLikelihood, Likelihood
from linlap.network import Network
from linlap.types import Inputs

_LEAST, _MOST = 1e-3, 1e3
"""Temperatures beyond which nothing is looked for."""
_STEPS = 200


@dataclass(frozen=True, eq=False)
class TemperedNetwork:
    """A network whose outputs are divided by a temperature."""

    inner: Network
    temperature: float

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def outputs(self, x: Inputs) -> Tensor:
        """f(x; θ*) / T `[n, C]`."""
        return self.inner.outputs(x) / self.temperature


@dataclass(frozen=True, eq=False)
class Tempered:
    """The trained network at a temperature T, for `ll.MAP`: no uncertainty about the weights."""

    network: TemperedNetwork
    likelihood: Likelihood

    @property
    def temperature(self) -> float:
        return self.network.temperature


def temperature_scaling(
    model: nn.Module, data: Any, likelihood: Likelihood, *, batch_size: int = 256, progress: bool = True
) -> Tempered:
    """The temperature T of smallest log loss of p(y | f / T) on held-out data: not those of the training.

    For classes. `ll.MAP` of what it returns predicts with it.
    """
    check_kinds(model, likelihood)
    if not isinstance(likelihood, ClassLikelihood):
        raise InputError(
            f"a temperature of a {type(likelihood).__name__} likelihood; it is for classes: ll.Categorical() or "
            "ll.Bernoulli(). The noise of a regression is part of its likelihood."
        )
    network = Network(model)
    found: list[tuple[Tensor, Tensor]] = []
    batches = as_batches(data, batch_size, network.device)
    for x, y in tqdm(batches, "outputs", batches.length, leave=False, delay=1.0, disable=not progress):
        f = network.outputs(x)
        found.append((f.double(), likelihood.prepare(y, f)))
    if not found:
        raise InputError("the data are empty: no batch came. Pass at least one input.")
    f, y = (torch.cat(part) for part in zip(*found, strict=True))
    if y.is_floating_point():
        y = y.double()
    return Tempered(TemperedNetwork(network, best_temperature(likelihood, y, f)), likelihood)


def best_temperature(likelihood: Likelihood, y: Tensor, f: Tensor) -> float:
    """By Newton's method in 1 / T, in which the log likelihood is concave, with bisection where it would leave."""

    def slopes(inverse: float) -> tuple[float, float]:
        at = inverse * f
        bent = (likelihood.hessian_sqrt(at).mT @ f.unsqueeze(-1)).square().sum()
        return float((likelihood.residual(y, at) * f).sum()), float(bent)

    low, high = 1 / _MOST, 1 / _LEAST
    if slopes(low)[0] <= 0:
        return _limit(_MOST, "the outputs say nothing about the labels, or the opposite of them")
    if slopes(high)[0] >= 0:
        return _limit(_LEAST, "every label is the likeliest by far")
    inverse = 1.0
    for _ in range(_STEPS):
        slope, bend = slopes(inverse)
        low, high = (inverse, high) if slope > 0 else (low, inverse)
        step = inverse + slope / bend if bend > 0 else low
        step = step if low < step < high else (low * high) ** 0.5
        if abs(step - inverse) <= 1e-12 * inverse:
            break
        inverse = step
    return 1 / step


def _limit(temperature: float, why: str) -> float:
    warnings.warn(
        f"no temperature is best: {why}. It is set to {temperature:g}; pass more held-out data.",
        LinlapWarning,
        stacklevel=4,
    )
    return temperature
