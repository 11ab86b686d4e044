"""The mode of the linear model, and Laplace there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.data import as_batches
from linlap.errors import InputError, LinlapWarning
from linlap.posteriors import Refinement, WeightPosterior
from linlap.refine.base import Method, check_steps, of_weights
from linlap.refine.climb import BATCH, Plan
from linlap.refine.problem import Problem
from linlap.refine.results import laplace_at
from linlap.refine.solvers import Mode, Tick, adam, lbfgs, newton
from linlap.refine.spaces import WeightSpace, cheapest
from linlap.refine.stored import Stored, groups, is_small
from linlap.refine.streamed_mode import default_rate, default_steps, stream_mode

Solver = Literal["auto", "newton", "lbfgs", "adam"]
_STEPS = {"newton": 100, "lbfgs": 1000, "adam": 1000}
_NEWTON_UP_TO = 6000
"""Rows of a factor that a step may take."""


@dataclass(frozen=True)
class GlmMap(Method):
    """Moves the mean to the mode of the linear model's log joint density, and fits the posterior's structure there.

    Where the Jacobians of all data fit into memory: Newton's method over weights or outputs, whichever is smaller, or
    L-BFGS where both are large, until the gradient's norm is at most `tolerance` (beside that of P0 m, if that is
    above 1); `solver="adam"` takes 1000 steps of 1e-3 instead, as the paper did. Otherwise, or with a `batch_size`,
    it goes through the data in minibatches with one jvp and one vjp a step, in the metric of the posterior's own
    precision, with a rate that falls to zero; a `checkpoint` file lets such a run go on where it was broken off.
    """

    solver: Solver = "auto"
    steps: int | None = None
    tolerance: float = 1e-9
    rate: float | None = None
    batch_size: int | None = None
    seeds: int | None = None
    seed: int = 0
    checkpoint: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.solver not in ("auto", *_STEPS):
            raise InputError(f"solver={self.solver!r}; pass 'auto', 'newton', 'lbfgs' or 'adam'.")
        check_steps(self.steps, self.rate, self.batch_size, "GlmMap")
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, float | int) or not self.tolerance > 0:
            raise InputError(f"GlmMap with tolerance={self.tolerance!r}; pass a positive number, for instance 1e-9.")
        if self.batch_size is not None and self.solver != "auto":
            raise InputError(
                f"GlmMap with batch_size and solver={self.solver!r}: minibatches have a solver of their own."
            )

    def refine(self, posterior: Any, data: Any, *, progress: bool = True) -> WeightPosterior:
        return self.refine_all([posterior], [data], progress=progress)[0]

    def refine_all(self, posteriors: Sequence[Any], data: Sequence[Any], *, progress: bool = True) -> list[Any]:
        pairs = list(zip([of_weights(posterior, self) for posterior in posteriors], data, strict=True))
        if self.solver == "auto" and (self.batch_size or not all(is_small(*pair) for pair in pairs)):
            return [self._stream(posterior, own, progress) for posterior, own in pairs]
        done: list[WeightPosterior] = []
        for group in groups(pairs, progress):
            mine = [own for _, own in pairs[len(done) : len(done) + len(group.posteriors)]]
            done += self._climb(group, mine, progress)
        return done

    def _stream(self, posterior: WeightPosterior, data: Any, progress: bool) -> WeightPosterior:
        size = self.batch_size or BATCH
        steps = self.steps or default_steps(posterior.curvature.totals.count, size)
        plan = Plan(steps, default_rate(self.rate), size, self.seeds, self.seed, self.checkpoint)
        return stream_mode(posterior, data, plan, self.tolerance, progress)

    def _climb(self, group: Stored, data: list[Any], progress: bool) -> list[WeightPosterior]:
        with tqdm(desc="finding the mode", leave=False, delay=1.0, disable=not progress) as bar:

            def tick(said: str) -> None:
                bar.set_postfix_str(said, refresh=False)
                bar.update()

            mode = self.mode(group.problem, tick)
        if not mode.converged and self.solver != "adam":
            warnings.warn(
                "the mode of the linear model is not reached: the gradient's norm is "
                f"{float(mode.gradient_norm.max()):.2g} after {mode.objective.shape[-1]} steps; pass more steps or a "
                "larger tolerance.",
                LinlapWarning,
                stacklevel=4,
            )
        many = len(group.posteriors)
        shifts = (mode.weights - group.problem.theta).reshape(many, -1)
        traces, norms = mode.objective.reshape(many, -1), mode.gradient_norm.reshape(many)
        found = []
        for posterior, own, shift, trace, norm in zip(group.posteriors, data, shifts, traces, norms, strict=True):
            batches = as_batches(own, 256, posterior.network.device)
            record = Refinement("GlmMap", len(trace), trace, float(norm), mode.converged)
            found.append(replace(laplace_at(posterior, shift, batches, self.seeds, progress), refinement=record))
        return found

    def mode(self, problem: Problem, tick: Tick = lambda said: None) -> Mode:
        """The mode of one problem, or of each of several."""
        smaller = min(problem.size, problem.rows)
        single = problem.J.ndim == 2
        chosen = self.solver
        if chosen == "auto":
            chosen = "newton" if smaller <= _NEWTON_UP_TO or not single else "lbfgs"
        steps = self.steps or _STEPS[chosen]
        if chosen == "newton":
            return newton(cheapest(problem, 10), steps, self.tolerance, tick)
        if chosen == "adam":
            return adam(WeightSpace(problem), steps, self.rate or 1e-3, self.tolerance, tick)
        if not single:
            return stacked_modes([self.mode(one, tick) for one in problem.split()])
        return lbfgs(WeightSpace(problem), steps, self.tolerance, tick)


def stacked_modes(modes: list[Mode]) -> Mode:
    """Modes found one by one, with traces of the longest's length."""
    longest = max(len(mode.objective) for mode in modes)
    traces: list[Tensor] = [
        torch.cat([mode.objective, mode.objective[-1:].expand(longest - len(mode.objective))]) for mode in modes
    ]
    norms = torch.stack([mode.gradient_norm for mode in modes])
    weights = torch.stack([mode.weights for mode in modes])
    return Mode(weights, torch.stack(traces), norms, all(mode.converged for mode in modes))
