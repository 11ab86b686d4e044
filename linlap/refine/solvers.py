"""The mode of the linear model's log joint density, which is concave in the weights for log-concave likelihoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.errors import NotFiniteError
from linlap.refine.spaces import Space, WeightSpace

Tick = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class Mode:
    """Weights `[P]`, the objective after each step, the norm of its gradient at the end and whether that was the aim.

    By problem if several.
    """

    weights: Tensor
    objective: Tensor
    gradient_norm: Tensor
    converged: Tensor


def log_joint(space: Space, mean: Tensor, f: Tensor) -> Tensor:
    """Σ log p(y | f) − ½ mᵀ D m."""
    return space.problem.log_likelihood(f) - 0.5 * space.prior_term(mean)


def newton(space: Space, steps: int, tolerance: float, tick: Tick) -> Mode:
    """Full steps, halved while they do not climb. Ends at the tolerance, or where rounding lets nothing climb."""
    problem = space.problem
    mean = space.start()
    f = space.outputs(mean)
    value = log_joint(space, mean, f)
    trace: list[Tensor] = []
    norm = _norm(space, mean, f)
    for _ in range(steps):
        if bool((norm <= tolerance).all()):
            break
        before, last = norm, value
        factor = space.factor(problem.blocks(f))
        direction = space.direction(mean, factor, problem.residual(f))
        step, value = _climb(space, mean, direction, value)
        mean = mean + step.unsqueeze(-1) * direction
        f = space.outputs(mean)
        trace.append(value)
        norm = _norm(space, mean, f)
        tick(f"gradient norm {float(norm.max()):.2g}")
        if bool(((value - last <= _rounding(value)) & (norm >= before)).all()):
            break
    return _finished(space, mean, trace or [value], norm, tolerance)


def _rounding(value: Tensor) -> Tensor:
    return 1e-13 * (1 + value.abs())


def _climb(space: Space, mean: Tensor, direction: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Step sizes, one a problem, at which the objective is no less but for rounding; 0 where there is none."""
    step = torch.ones_like(value)
    new = value
    for _ in range(40):
        tried = mean + step.unsqueeze(-1) * direction
        new = log_joint(space, tried, space.outputs(tried))
        poor = ~(new >= value - _rounding(value))
        if not poor.any():
            return step, new
        step = torch.where(poor, 0.5 * step, step)
    return torch.where(poor, torch.zeros_like(step), step), torch.where(poor, value, new)


def lbfgs(space: WeightSpace, steps: int, tolerance: float, tick: Tick) -> Mode:
    """Limited-memory BFGS, in weights scaled by the diagonal of the curvature at the start."""
    problem, trace = space.problem, [torch.zeros(())]
    f = space.outputs(problem.start)
    seen = (problem.likelihood.hessian_sqrt(f).mT @ problem.J.unflatten(-2, f.shape[-2:])).square().sum((-3, -2))
    scale = (seen + problem.d).rsqrt()
    point = (problem.start / scale).clone()

    def closure() -> float:
        mean = point * scale
        f = space.outputs(mean)
        point.grad = -scale * space.gradient(mean, problem.residual(f))
        trace.append(log_joint(space, mean, f))
        return -float(trace[-1])

    optimizer = torch.optim.LBFGS([point], 1.0, steps, 4 * steps, 0.0, 1e-15, 50, "strong_wolfe")
    for _ in range(20):  # the search forgets what it learnt where rounding stops it, and goes on from there
        before = _norm(space, point * scale, space.outputs(point * scale))
        if before <= tolerance:
            break
        optimizer.step(closure)
        tick(f"gradient norm {float(before):.2g}")
        if _norm(space, point * scale, space.outputs(point * scale)) > 0.5 * before:
            break
    mean = point * scale
    return _finished(space, mean, trace[1:] or trace, _norm(space, mean, space.outputs(mean)), tolerance)


def adam(space: WeightSpace, steps: int, rate: float, tolerance: float, tick: Tick) -> Mode:
    """So many steps of Adam on all data, whatever they reach: the paper's way."""
    point, trace = space.start().clone(), []
    optimizer = torch.optim.Adam([point], rate)
    for _ in range(steps):
        f = space.outputs(point)
        trace.append(log_joint(space, point, f))
        point.grad = -space.gradient(point, space.problem.residual(f))
        optimizer.step()
        tick("")
    point.grad = None
    return _finished(space, point, trace, _norm(space, point, space.outputs(point)), tolerance)


def _norm(space: Space, mean: Tensor, f: Tensor) -> Tensor:
    return space.gradient(mean, space.problem.residual(f)).norm(dim=-1)


def _finished(space: Space, mean: Tensor, trace: list[Tensor], norm: Tensor, tolerance: float) -> Mode:
    weights = space.weights(mean)
    if not torch.isfinite(weights).all():
        raise NotFiniteError(
            "the mode of the linear model ran to infinity; use a larger prior precision, or look at the data for "
            "targets the network cannot reach."
        )
    pull = (space.problem.d * weights).norm(dim=-1)
    return Mode(weights, torch.stack(trace, -1), norm, norm <= tolerance * pull.clamp_min(1.0))
