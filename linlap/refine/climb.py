"""Many small steps on minibatches, written down from time to time so that a run broken off goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.posteriors import WeightPosterior
from linlap.refine.checkpoint import Checkpoint
from linlap.refine.minibatches import Batch, Minibatches
from linlap.seeds import generator_for

BATCH = 128
_SECONDS_BETWEEN = 30.0


class Climbing(Protocol):
    """A state that knows the objective after each of the steps that led to it."""

    @property
    def objective(self) -> Tensor: ...


State = TypeVar("State", bound=Climbing)


@dataclass(frozen=True)
class Plan:
    """How to go through the data: so many steps of `size` inputs each, in the order of a seed."""

    steps: int
    rate: float
    size: int
    seeds: int | None
    seed: int
    checkpoint: str | os.PathLike[str] | None

    def generator(self, step: int, device: torch.device) -> torch.Generator:
        """Noise that depends on the step, not on what came before it."""
        return generator_for(self.seed, step, device)


def climb(
    plan: Plan,
    posterior: WeightPosterior,
    data: Any,
    state: State,
    advance: Callable[[State, Batch], State],
    *,
    settings: object,
    settled: Callable[[State], bool] = lambda state: False,
    progress: bool = True,
) -> State:
    """The state after the plan's steps, or when it has settled. `settings` are what else decides the run."""
    device = posterior.network.device
    checkpoint = Checkpoint.at(plan.checkpoint, (plan.rate, plan.size, plan.seeds, plan.seed, settings), posterior)
    state = state if checkpoint is None else checkpoint.read(state) or state
    done, written = len(state.objective), time.monotonic()
    steps = range(done, plan.steps)
    bar = tqdm(steps, "refining", plan.steps, initial=done, leave=False, delay=1.0, disable=not progress)
    for _, batch in zip(bar, Minibatches(data, plan.size, device, plan.seed).since(done), strict=False):
        state = advance(state, batch)
        bar.set_postfix_str(f"objective about {float(state.objective[-20:].mean()):.5g}", refresh=False)
        if checkpoint is not None and time.monotonic() - written > _SECONDS_BETWEEN:
            checkpoint.write(state)
            written = time.monotonic()
        if settled(state):
            break
    if checkpoint is not None:
        checkpoint.write(state)
    return state
