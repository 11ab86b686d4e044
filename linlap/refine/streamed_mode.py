"""The mode of the linear model of a large network: minibatches, no stored Jacobian."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from linlap.data import as_batches
from linlap.errors import LinlapWarning, NotFiniteError
from linlap.network.inputs import count
from linlap.posteriors import Refinement, WeightPosterior
from linlap.refine.climb import Plan, climb
from linlap.refine.minibatches import Batch
from linlap.refine.problem import check_number, prior_vector
from linlap.refine.results import laplace_at
from linlap.refine.streamed import at_mean

_RATE, _PASSES, _LEAST = 0.1, 5, 200


@dataclass(frozen=True, eq=False)
class State:
    """The mean's distance from θ* `[P]`, and estimates of the objective, one a step."""

    shift: Tensor
    objective: Tensor


def default_steps(total: int, size: int) -> int:
    """A few passes over the data."""
    return max(_LEAST, _PASSES * -(-total // size))


def default_rate(rate: float | None) -> float:
    return _RATE if rate is None else rate


def stream_mode(posterior: WeightPosterior, data: Any, plan: Plan, tolerance: float, progress: bool) -> WeightPosterior:
    """Steps in the metric of the posterior's precision, then Laplace; or the old mean, and a warning, if better."""
    batches = as_batches(data, plan.size, posterior.network.device)
    check_number(posterior, sum(count(x) for x, _ in batches))
    start = posterior.mean - posterior.network.vector().double()

    def advance(state: State, batch: Batch) -> State:
        return _advance(posterior, state, batch, plan.rate * (1 - len(state.objective) / plan.steps))

    state = climb(
        plan, posterior, data, State(start, start.new_zeros(0)), advance, settings=plan.steps, progress=progress
    )
    refined = laplace_at(posterior, state.shift, batches, plan.seeds, progress)
    if not log_joint(refined) > log_joint(posterior):
        warnings.warn(
            f"{plan.steps} steps on minibatches did not raise the linear model's log joint density "
            f"({log_joint(posterior):.8g}): the mean stays where it was. It may be at the mode but for rounding; "
            "otherwise pass a smaller rate or more steps.",
            LinlapWarning,
            stacklevel=5,
        )
        refined = posterior
    norm = gradient_norm(refined, batches, progress)
    pull = float((prior_vector(refined) * refined.mean).norm())
    converged = norm <= tolerance * max(1.0, pull)
    return replace(refined, refinement=Refinement("GlmMap", plan.steps, state.objective, norm, converged))


def _advance(posterior: WeightPosterior, state: State, batch: Batch, rate: float) -> State:
    x, y = batch
    network, likelihood = posterior.network, posterior.likelihood
    d, mean = prior_vector(posterior), network.vector().double() + state.shift
    share = posterior.curvature.totals.count / count(x)
    f = network.outputs(x) + network.jvp(x, network.named(state.shift.to(network.dtype)))
    y = likelihood.prepare(y, f)
    gradient = share * _pulled(posterior, x, likelihood.residual(y, f)) - d * mean
    shift = state.shift + rate * posterior.precision.solve(gradient)
    value = share * likelihood.log_prob(y, f).double().sum() - 0.5 * (d * mean.square()).sum()
    if not torch.isfinite(shift).all():
        raise NotFiniteError(
            f"step {len(state.objective) + 1} towards the mode ran to numbers that are not finite; pass a smaller rate "
            f"(it was {rate:g}), or a larger prior precision."
        )
    return State(shift, torch.cat([state.objective, value.reshape(1)]))


def _pulled(posterior: WeightPosterior, x: Any, residual: Tensor) -> Tensor:
    back = posterior.network.vjp(x, residual)
    return torch.cat([back[name].flatten() for name in posterior.network.names]).double()


def log_joint(posterior: WeightPosterior) -> float:
    """Σ log p(y | f_lin) − ½ mᵀ P0 m at a posterior's mean."""
    penalty = float((prior_vector(posterior) * posterior.mean.square()).sum())
    return posterior.curvature.totals.log_likelihood - 0.5 * penalty


def gradient_norm(posterior: WeightPosterior, batches: Any, progress: bool) -> float:
    """‖Jᵀ r − P0 m‖ over all data, in one pass."""
    total = -prior_vector(posterior) * posterior.mean
    shift = posterior.mean - posterior.network.vector().double()
    for x, y, f in at_mean(posterior, shift, batches, progress):
        total = total + _pulled(posterior, x, posterior.likelihood.residual(y, f))
    return float(total.norm())
