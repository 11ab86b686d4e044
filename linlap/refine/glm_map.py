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

from linlap.curvature import Diagonal, Full
from linlap.data import as_batches
from linlap.distributed import world_size
from linlap.errors import InputError, LinlapWarning
from linlap.posteriors import Refinement, WeightPosterior
from linlap.refine.base import Method, check_checkpoint, check_steps, of_weights, one_by_one
from linlap.refine.climb import BATCH, Plan
from linlap.refine.problem import Problem
from linlap.refine.results import laplace_at, posteriors_of
from linlap.refine.solvers import Mode, Tick, adam, lbfgs, newton
from linlap.refine.spaces import WeightSpace, cheapest
from linlap.refine.stored import Pair, Stored, refined
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
        pairs = one_by_one(zip(posteriors, data, strict=True), lambda pair: (of_weights(pair[0], self), pair[1]))
        check_checkpoint(self.checkpoint, len(pairs))
        if self.batch_size:
            return one_by_one(pairs, lambda pair: self._stream(pair, progress))
        stream = (lambda pair: self._stream(pair, progress)) if self.solver == "auto" else None
        return refined(pairs, lambda group: self._climb(group, progress), stream, progress)

    def _stream(self, pair: Pair, progress: bool) -> WeightPosterior:
        posterior, data = pair
        size = self.batch_size or BATCH
        steps = self.steps or default_steps(posterior.curvature.totals.count, size)
        plan = Plan(steps, default_rate(self.rate), size, self.seeds, self.seed, self.checkpoint)
        return stream_mode(posterior, data, plan, self.tolerance, progress)

    def _climb(self, group: Stored, progress: bool) -> list[WeightPosterior]:
        with tqdm(desc="finding the mode", leave=False, delay=1.0, disable=not progress) as bar:

            def tick(said: str) -> None:
                bar.set_postfix_str(said, refresh=False)
                bar.update()

            mode = self.mode(group.problem, tick)
        if not mode.converged.all() and self.solver != "adam":
            warnings.warn(
                "the mode of the linear model is not reached: the gradient's norm is "
                f"{float(mode.gradient_norm.max()):.2g} after {mode.objective.shape[-1]} steps; pass more steps or a "
                "larger tolerance.",
                LinlapWarning,
                stacklevel=4,
            )
        many = len(group.posteriors)
        traces, *ends = mode.objective.reshape(many, -1), mode.gradient_norm.reshape(many), mode.converged.reshape(many)
        found = []
        for posterior, trace, norm, converged in zip(
            self._laplace_at(group, mode, progress), traces, *ends, strict=True
        ):
            record = Refinement("GlmMap", len(trace), trace, float(norm), bool(converged))
            found.append(replace(posterior, refinement=record))
        return found

    def _laplace_at(self, group: Stored, mode: Mode, progress: bool) -> list[WeightPosterior]:
        """The structure fitted at the mode: from the Jacobians that are there, or in another pass over the data."""
        problem, structure = group.problem, group.posteriors[0].structure
        if isinstance(structure, Full | Diagonal) and self.seeds is None and world_size() == 1:
            space = WeightSpace(problem)
            blocks = problem.blocks(space.outputs(mode.weights))
            return posteriors_of(group, space, mode.weights, blocks, isinstance(structure, Diagonal))
        shifts = (mode.weights - problem.theta).reshape(len(group.posteriors), -1)
        return [
            laplace_at(posterior, shift, as_batches(own, 256, posterior.network.device), self.seeds, progress)
            for posterior, own, shift in zip(group.posteriors, group.data, shifts, strict=True)
        ]

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
    return Mode(weights, torch.stack(traces), norms, torch.stack([mode.converged for mode in modes]))
