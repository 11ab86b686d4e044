"""Training to θ*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from torch import Tensor, nn

from linlap.baselines.ascent import Plan, Rate, Tick, climb, ticking
from linlap.baselines.stacks import Batch, Stack, problems_of, stacks_of
from linlap.likelihoods import Likelihood
from linlap.prior import Prior

AnyPrior = Prior | float


@overload
def train_map(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    prior: AnyPrior = 1.0,
    *,
    steps: int = 10_000,
    rate: Rate = 1e-3,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> nn.Module: ...
@overload
def train_map(
    model: Sequence[nn.Module],
    data: Sequence[Any],
    likelihood: Likelihood,
    prior: AnyPrior | Sequence[AnyPrior] = 1.0,
    *,
    steps: int = 10_000,
    rate: Rate = 1e-3,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> list[nn.Module]: ...
def train_map(
    model: Any,
    data: Any,
    likelihood: Likelihood,
    prior: Any = 1.0,
    *,
    steps: int = 10_000,
    rate: Rate = 1e-3,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> Any:
    """A trained copy of the model: Adam on the log joint Σ log p(y | f(x; θ)) − ½ θᵀ P0 θ, from the weights it has.

    Lists of models, data and priors (or one prior for all) give a list: models of one architecture with equally many
    data are trained side by side, each on its own, with the same result but for rounding. Tensors (X, y) are taken
    whole, or `batch_size` at a time in an order that `seed` decides; a Dataset 512 at a time or as many as
    `batch_size` says, and loaders as they come, both one network after the other. `rate` may be a function of the
    step; `progress` one to call after each step instead of a bar. As for posteriors, f is the network in evaluation
    mode: no dropout, and the statistics of batch norm layers stay as they are. The model given is left as it is.
    """
    plan = Plan(steps, rate, batch_size, seed)
    problems = problems_of(model, data, likelihood, prior)
    stacks = stacks_of(problems, likelihood)
    trained: list[nn.Module | None] = [None] * len(problems)
    with ticking(progress, steps * len(stacks), "training") as tick:
        for stack in stacks:
            found = climb(log_joint(stack), stack.theta, stack.batches(batch_size, seed), plan, stack.names, tick)
            for place, problem, theta in zip(stack.places, stack.problems, found.point, strict=True):
                trained[place] = problem.trained(theta)
    return trained if isinstance(model, list | tuple) else trained[0]


def log_joint(stack: Stack) -> Any:
    """Of weights `[K, P]`, up to the prior's constant."""

    def objective(theta: Tensor, batch: Batch) -> Tensor:
        f = stack.outputs(theta, batch.x)
        return stack.log_likelihood(f, batch) - 0.5 * (stack.precision * theta.square()).sum(-1)

    return objective
