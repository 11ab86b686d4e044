"""Mean-field variational inference over the weights of the network itself: Bayes by backprop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from linlap.baselines.ascent import Plan, Rate, Tick, climb, ticking
from linlap.baselines.local import local_weights, sampled
from linlap.baselines.stacks import Batch, Problem, Stack, problems_of, seeded, stacks_of
from linlap.curvature import Diagonal, DiagonalCurvature, Totals
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.posteriors import Refinement, WeightPosterior
from linlap.prior import Prior
from linlap.types import Inputs

_START = -7.0
"""Where deviations start, before the softplus: 9e-4."""

AnyPrior = Prior | float


@overload
def mfvi(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    prior: AnyPrior = 1.0,
    *,
    steps: int = 5000,
    rate: Rate = 1e-2,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> WeightPosterior: ...
@overload
def mfvi(
    model: Sequence[nn.Module],
    data: Sequence[Any],
    likelihood: Likelihood,
    prior: AnyPrior | Sequence[AnyPrior] = 1.0,
    *,
    steps: int = 5000,
    rate: Rate = 1e-2,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> list[WeightPosterior]: ...
def mfvi(
    model: Any,
    data: Any,
    likelihood: Likelihood,
    prior: Any = 1.0,
    *,
    steps: int = 5000,
    rate: Rate = 1e-2,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> Any:
    """The independent Gaussian q(θ) of largest ELBO E_q[Σ log p(y | f(x; θ))] − KL(q ‖ prior), by Adam.

    One sample a step. Linear and convolutional layers are sampled at their outputs (local reparameterisation; for
    weights that see an input at several positions, each position by itself, which neglects what these have in
    common), all other weights and biases directly. Means start at the model's weights, deviations at softplus(−7).

    The posterior is around a copy of the network at q's mean, made for `ll.BNN`; `posterior.refinement.objective` holds
    the estimates of the ELBO. Lists, data, batches, `rate` and `progress` are as in `ll.train_map`.
    """
    plan = Plan(steps, rate, batch_size, seed)
    problems = problems_of(model, data, likelihood, prior, tempered=False)
    stacks = stacks_of(problems, likelihood)
    found: list[WeightPosterior | None] = [None] * len(problems)
    with ticking(progress, steps * len(stacks), "variational inference") as tick:
        for stack in stacks:
            # Apart from what the climb draws, so that it starts from the seed whatever came first.
            local = local_weights(stack.network, stack.glimpse())
            start = torch.cat([stack.theta, torch.full_like(stack.theta, _START)], -1)
            with seeded(seed, stack.theta.device):
                batches = stack.batches(batch_size, seed)
                end = climb(elbo(stack, local), start, batches, plan, stack.names, tick)
            for k, (place, problem) in enumerate(zip(stack.places, stack.problems, strict=True)):
                found[place] = _posterior(problem, likelihood, end.point[k], end.objective[:, k])
    return found if isinstance(model, list | tuple) else found[0]


def elbo(stack: Stack, local: frozenset[str]) -> Callable[[Tensor, Batch], Tensor]:
    """Of means and deviations before the softplus `[K, 2 P]`, at one sample."""
    network = stack.network

    def outputs(mean: Tensor, deviation: Tensor, x: Inputs) -> Tensor:
        return sampled(network, network.named(mean), network.named(deviation), local, x)

    def objective(point: Tensor, batch: Batch) -> Tensor:
        mean, deviation = point.tensor_split(2, -1)
        deviation = softplus(deviation)
        f = stack.apply(outputs, mean, deviation, batch.x)
        return stack.log_likelihood(f, batch) - divergence(mean, deviation, stack.precision)

    return objective


def divergence(mean: Tensor, deviation: Tensor, precision: Tensor) -> Tensor:
    """KL(N(mean, deviation²) ‖ N(0, 1 / precision)), summed over the last axis."""
    relative = precision * deviation.square()
    return 0.5 * (relative + precision * mean.square() - relative.log() - 1).sum(-1)


def _posterior(problem: Problem, likelihood: Likelihood, point: Tensor, objective: Tensor) -> WeightPosterior:
    """The curvature is what the precision of q has above the prior's; it may be below zero."""
    mean, before = point.tensor_split(2)
    network = Network(problem.model, theta=problem.network.named(mean))
    excess = softplus(before.double()).square().reciprocal() - problem.precision.double()
    pieces = excess.split([shape.numel() for shape in network.shapes.values()])
    totals = Totals(problem.total, problem.log_likelihood(likelihood, network))
    curvature = DiagonalCurvature(network.shapes, totals, dict(zip(network.names, pieces, strict=True)))
    history = Refinement("mfvi", len(objective), objective.double().clone(), None, None)
    return WeightPosterior(network, likelihood, Diagonal(), curvature, problem.prior, refinement=history)
