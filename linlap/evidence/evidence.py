"""Choosing the prior, and a Gaussian likelihood's noise, by the evidence."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from linlap.checks import is_whole
from linlap.choice import AnyPosterior, PriorChoice
from linlap.errors import InputError, LinlapWarning
from linlap.evidence.descent import Descent, minimise
from linlap.evidence.groups import Over
from linlap.evidence.noise import Noise
from linlap.evidence.problem import Posterior, Problem, of_functions, of_weights
from linlap.posteriors import FunctionPosterior, WeightPosterior


@dataclass(frozen=True, eq=False)
class Maximum:
    """Where the evidence is largest, and how that was found.

    `log_evidence` and `gradient_norm` hold the value and the largest derivative in the logarithm of a precision or of
    a noise, at the start and after each step; `at_bounds` names what ran to a bound.
    """

    posterior: Any
    log_evidence: tuple[float, ...]
    gradient_norm: tuple[float, ...]
    converged: bool
    at_bounds: tuple[str, ...]

    def __repr__(self) -> str:
        end = "converged" if self.converged else "not converged"
        bounds = f", at a bound: {', '.join(self.at_bounds)}" if self.at_bounds else ""
        return (
            f"Maximum(log evidence {self.log_evidence[0]:.6g} → {self.log_evidence[-1]:.6g} in "
            f"{len(self.log_evidence) - 1} steps, gradient {self.gradient_norm[-1]:.1g}, {end}{bounds})"
        )


@dataclass(frozen=True, eq=False)
class Evidence(PriorChoice):
    """The prior under which the linear model explains the training data best: the maximum of the Laplace evidence.

    `over`: one precision for all weights ("scalar"), one a parameter tensor, so that a layer's weight and bias have
    one each ("layer"), or one a weight ("weight"). `noise`: None keeps a Gaussian likelihood's, "scalar" chooses one
    factor on it, "output" a noise for each output, from one pass over `data`, which must be those of the fit; no
    other choice touches data. Precisions stay within `bounds`, noise within `noise_bounds`. Maximised until no
    derivative in a logarithm exceeds `tolerance` (nats), in at most `iterations` steps. Temperatures play no part
    and stay.
    """

    over: Over = "scalar"
    noise: Noise | None = None
    data: Any = field(default=None, repr=False)
    bounds: tuple[float, float] = (1e-6, 1e6)
    noise_bounds: tuple[float, float] = (1e-6, 1e6)
    tolerance: float = 1e-6
    iterations: int = 1000
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.over not in ("scalar", "layer", "weight"):
            raise InputError(f"over={self.over!r}; pass 'scalar', 'layer' or 'weight'.")
        if self.noise not in (None, "scalar", "output"):
            raise InputError(f"noise={self.noise!r}; pass None, 'scalar' or 'output'.")
        if self.noise == "output" and self.data is None:
            raise InputError(
                "noise='output' needs the curvature of each output, which takes a pass over the data of the fit; pass "
                "ll.Evidence(noise='output', data=...), or noise='scalar', which needs none."
            )
        if self.noise != "output" and self.data is not None:
            raise InputError("data are of no use without noise='output': leave them out, or ask for that.")
        _check_bounds(self.bounds, "bounds")
        _check_bounds(self.noise_bounds, "noise_bounds")
        if not (isinstance(self.tolerance, int | float) and 0 < self.tolerance < math.inf):
            raise InputError(f"tolerance={self.tolerance!r}; pass a small positive number, for instance 1e-6.")
        if not is_whole(self.iterations):
            raise InputError(f"iterations={self.iterations!r}; pass a positive number of steps, for instance 1000.")

    def select(self, posterior: AnyPosterior) -> AnyPosterior:
        """The posterior at the maximum. `maximise` tells as well how it was found."""
        found: AnyPosterior = self.maximise(posterior).posterior
        return found

    def maximise(self, posterior: Posterior) -> Maximum:
        """The maximum, with value and gradient after each step. Warns if it lies at a bound or was not reached."""
        with torch.inference_mode(False), torch.no_grad():
            problem = self._problem(posterior)
            start = torch.cat([problem.groups.start(posterior.prior), torch.zeros_like(problem.fit.numbers)])
            lower, upper = self._limits(problem, posterior)
            descent = minimise(problem.loss, start, lower, upper, self.tolerance, self.iterations)
            descent = _run_out(descent, problem, lower, upper, self.tolerance)
            bounds = self._at_bounds(descent.x, problem, lower, upper)
            chosen = problem.posterior(descent.x, posterior.prior.temperature)
        values = tuple(-value for value in descent.values)
        found = Maximum(chosen, values, descent.slopes, descent.converged, bounds)
        if not descent.converged:
            warnings.warn(
                f"the evidence's maximum was not reached: after {len(values) - 1} steps its gradient is "
                f"{descent.slopes[-1]:.2g}, tolerance={self.tolerance:g}; pass more iterations, or fewer precisions.",
                LinlapWarning,
                stacklevel=3,
            )
        if bounds:
            warnings.warn(
                f"the evidence grows beyond the bounds: {', '.join(bounds)}. Pass other bounds, or fewer precisions.",
                LinlapWarning,
                stacklevel=3,
            )
        return found

    def _problem(self, posterior: Posterior) -> Problem:
        if isinstance(posterior, WeightPosterior):
            return of_weights(posterior, self.over, self.noise, self.data, self.batch_size)
        if isinstance(posterior, FunctionPosterior):
            return of_functions(posterior, self.over, self.noise)
        raise InputError(
            f"a {type(posterior).__name__} has no evidence; pass what ll.laplace or ll.gaussian_process returned."
        )

    def _limits(self, problem: Problem, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """Of log δ and of log β, which falls as the noise grows."""
        limits = torch.tensor(self.bounds, dtype=torch.float64, device=problem.squares.device).log()
        lower, upper = (limit.expand(problem.k) for limit in limits)
        m = len(problem.fit.numbers)
        if not m:
            return lower, upper
        likelihood: Any = posterior.likelihood
        now = torch.as_tensor(likelihood.noise, dtype=torch.float64, device=limits.device).detach().reshape(-1)
        least, most = self.noise_bounds
        low, high = 2 * (now / most).log(), 2 * (now / least).log()
        if m == 1:
            low, high = low.max().reshape(1), high.min().reshape(1)
        return torch.cat([lower, low.expand(m)]), torch.cat([upper, high.expand(m)])

    def _at_bounds(self, x: Tensor, problem: Problem, lower: Tensor, upper: Tensor) -> tuple[str, ...]:
        found = []
        for beyond, limit in ((x <= lower, self.bounds[0]), (x >= upper, self.bounds[1])):
            places = beyond[: problem.k].nonzero().flatten().tolist()
            if places:
                name = problem.groups.of_weight(places[0])
                many = f"{len(places)} of {problem.k} precisions, the first of" if problem.k > 1 else "the precision of"
                found.append(f"{many} {name}, at {limit:g}")
        for beyond, limit in ((x >= upper, self.noise_bounds[0]), (x <= lower, self.noise_bounds[1])):
            if beyond[problem.k :].any():
                found.append(f"the noise, at {limit:g}")
        return tuple(found)


def _run_out(descent: Descent, problem: Problem, lower: Tensor, upper: Tensor, tolerance: float) -> Descent:
    """Precisions the evidence no longer feels go on to the bound they were heading for, if it does not fall on the way.

    They are those of weights the data say nothing about, or of weights that are zero; else they would lie wherever the
    search stopped.
    """
    x = descent.x
    k = problem.k
    if not descent.converged or not k:
        return descent
    gradient = problem.loss(x).gradient[:k]
    u = x[:k]
    flat = (u.exp() * problem.squares <= 2 * tolerance) & (gradient != 0) & (u > lower[:k]) & (u < upper[:k])
    if not flat.any():
        return descent
    ends = torch.where(gradient > 0, lower[:k], upper[:k])
    there = torch.cat([torch.where(flat, ends, u), x[k:]])
    value = problem.loss(there).value
    if not value <= descent.values[-1]:
        return descent
    return Descent(there, (*descent.values, value), (*descent.slopes, descent.slopes[-1]), True)


def _check_bounds(bounds: Any, name: str) -> None:
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={bounds!r}; pass two positive numbers, for instance (1e-6, 1e6).") from error
    if not 0 < low < high < math.inf:
        raise InputError(f"{name}={bounds!r}; pass two positive numbers, the smaller first.")
