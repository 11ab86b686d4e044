"""Adam on one objective a network, of many networks at once: each climbs its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.baselines.stacks import Batch
from linlap.checks import check_seed, is_whole
from linlap.errors import InputError, NotFiniteError

Rate = float | Callable[[int], float]
Tick = Callable[[], None]
Objective = Callable[[Tensor, Batch], Tensor]
"""Of points `[K, Q]` and a batch of each network's data: `[K]`."""

_STEPS_BETWEEN_CHECKS = 50
_STEPS_BEFORE_CAPTURE = 3


@dataclass(frozen=True)
class Plan:
    """So many steps of Adam, of one size or of one that the step decides; `size` inputs each, None: all."""

    steps: int
    rate: Rate
    size: int | None
    seed: int

    def __post_init__(self) -> None:
        check_whole(self.steps, "steps", 1000)
        if self.size is not None:
            check_whole(self.size, "batch_size", 512)
        check_seed(self.seed)
        if not callable(self.rate):
            _check_rate(self.rate, f"rate={self.rate!r}")

    def rate_at(self, step: int) -> float:
        if not callable(self.rate):
            return self.rate
        rate = self.rate(step)
        _check_rate(rate, f"rate({step}) is {rate!r}")
        return float(rate)


def check_whole(value: Any, name: str, example: int) -> None:
    if not is_whole(value):
        raise InputError(f"{name}={value!r}; pass a whole number ≥ 1, for instance {example}.")


def _check_rate(rate: Any, given: str) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise InputError(f"{given}; pass a step size > 0, for instance 1e-3, or a function of the step that gives one.")


@dataclass(frozen=True, eq=False)
class Climb:
    """Where Adam came to `[K, Q]`, and the objective before each of its steps `[steps, K]`."""

    point: Tensor
    objective: Tensor


def climb(
    objective: Objective, start: Tensor, batches: Iterator[Batch], plan: Plan, names: Sequence[str], tick: Tick
) -> Climb:
    """Maximises the objectives. One that is no longer finite ends it with an error that says whose it is."""
    with torch.inference_mode(False), torch.enable_grad():
        adam = _Adam(objective, start, plan)
        for step, batch in zip(range(plan.steps), batches, strict=False):
            adam.take(step, batch)
            if (step + 1) % _STEPS_BETWEEN_CHECKS == 0 or step + 1 == plan.steps:
                adam.check(step + 1, names)
            tick()
    return Climb(adam.point.detach(), adam.trace)


class _Adam:
    """The optimiser's state. On a GPU a step on the batch that was there before is replayed as a CUDA graph."""

    def __init__(self, objective: Objective, start: Tensor, plan: Plan) -> None:
        self._objective, self._plan = objective, plan
        self.point = start.detach().clone().requires_grad_(True)
        self.trace = start.new_empty(plan.steps, len(start))
        # A tensor, so that a captured step sees its changes.
        kind = torch.float32 if start.is_cuda else torch.float64
        self._rate = torch.tensor(plan.rate_at(0), dtype=kind, device=start.device)
        self._optimizer = torch.optim.Adam(
            [self.point], self._rate, maximize=True, fused=True, capturable=start.is_cuda
        )
        self._batch: Batch | None = None
        self._repeats = 0
        self._replay: Callable[[], Tensor] | None = None

    def take(self, step: int, batch: Batch) -> None:
        if callable(self._plan.rate):
            self._rate.fill_(self._plan.rate_at(step))
        if batch is not self._batch:
            self._batch, self._repeats, self._replay = batch, 0, None
        self._repeats += 1
        if self.point.is_cuda and self._repeats > _STEPS_BEFORE_CAPTURE:
            self._replay = self._replay or self._captured(batch)
            self.trace[step] = self._replay()
        else:
            self.trace[step] = self._step(batch)

    def _step(self, batch: Batch) -> Tensor:
        value = self._objective(self.point, batch)
        (self.point.grad,) = torch.autograd.grad(value.sum(), [self.point])
        self._optimizer.step()
        return value.detach()

    def _captured(self, batch: Batch) -> Callable[[], Tensor]:
        """The step on this batch as a graph; capturing it does not take it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            value = self._step(batch)

        def replay() -> Tensor:
            graph.replay()
            return value

        return replay

    def check(self, done: int, names: Sequence[str]) -> None:
        """NaN stays in weights once it is there, so that looking from time to time is enough."""
        bad = ~(torch.isfinite(self.trace[done - 1]) & torch.isfinite(self.point).all(-1))
        if bad.any():
            raise NotFiniteError(
                f"{names[int(bad.nonzero()[0])]} ran to numbers that are not finite by step {done}; pass a smaller "
                f"rate (it was {self._plan.rate_at(done - 1):g}), or scale its data."
            )


@contextmanager
def ticking(progress: bool | Tick, total: int, what: str) -> Iterator[Tick]:
    """What to call after each step: it moves a bar, or is the caller's own."""
    if callable(progress):
        yield progress
        return
    with tqdm(total=total, desc=what, leave=False, delay=1.0, disable=not progress) as bar:

        def tick() -> None:
            bar.update()

        yield tick
