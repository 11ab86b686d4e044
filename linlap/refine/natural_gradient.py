"""Natural-gradient variational inference in the linear model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.errors import InputError
from linlap.posteriors import Refinement, WeightPosterior
from linlap.refine.base import Method, check_checkpoint, check_steps, of_weights, one_by_one
from linlap.refine.climb import BATCH, Plan
from linlap.refine.elbo import State, advance, elbo, initial, standard_noise
from linlap.refine.problem import Problem
from linlap.refine.results import posteriors_of
from linlap.refine.spaces import DiagonalSpace, Space, cheapest
from linlap.refine.stored import Pair, Stored, refined
from linlap.refine.streamed import stream

Covariance = Literal["full", "diagonal", "kron"]
_RATES: dict[str, float] = {"full": 1e-2, "diagonal": 1e-3, "kron": 1e-2}


@dataclass(frozen=True)
class NaturalGradient(Method):
    """Climbs the ELBO of a Gaussian over the weights of the linear model, from the posterior given.

    After a step the precision is (1 − rate) of what it was and `rate` of the curvature at `samples` samples of f; the
    mean moves by `rate` along the natural gradient. `rate` defaults to what fits the paper's tables: 0.01, and 0.001
    for the diagonal. `covariance="full"` holds all Jacobians, and works over weights or over outputs, whichever is
    smaller. "diagonal" does so where they fit into memory; else, and with "kron" or a `batch_size`, it goes through
    the data in minibatches and holds none; `seeds` random seeds then stand for the C exact ones of the curvature
    (None: exact). `patience` stops where the ELBO has not risen for so many steps, and keeps the best. A `checkpoint`
    file lets a run over minibatches that was broken off go on.
    """

    covariance: Covariance = "full"
    steps: int = 250
    rate: float | None = None
    samples: int = 1
    patience: int | None = None
    batch_size: int | None = None
    seeds: int | None = 1
    seed: int = 0
    checkpoint: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.covariance not in _RATES:
            raise InputError(f"covariance={self.covariance!r}; pass 'full', 'diagonal' or 'kron'.")
        check_steps(self.steps, self.rate, self.batch_size, "NaturalGradient")
        for name, least in (("samples", 1), ("patience", 1), ("seeds", 1), ("seed", 0)):
            value = getattr(self, name)
            optional = value is None and name in ("patience", "seeds")
            if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"NaturalGradient with {name}={value!r}; pass a whole number ≥ {least}.")
        if self.covariance == "full" and self.batch_size is not None:
            raise InputError(
                "NaturalGradient with covariance='full' takes all data at once; leave batch_size out, or pass "
                "covariance='kron'."
            )

    @property
    def step_size(self) -> float:
        return _RATES[self.covariance] if self.rate is None else self.rate

    def refine(self, posterior: Any, data: Any, *, progress: bool = True) -> WeightPosterior:
        return self.refine_all([posterior], [data], progress=progress)[0]

    def refine_all(self, posteriors: Sequence[Any], data: Sequence[Any], *, progress: bool = True) -> list[Any]:
        pairs = one_by_one(zip(posteriors, data, strict=True), lambda pair: (of_weights(pair[0], self), pair[1]))
        check_checkpoint(self.checkpoint, len(pairs))
        if self.covariance == "kron" or self.batch_size is not None:
            return one_by_one(pairs, lambda pair: self._stream(pair, progress))
        stream = None if self.covariance == "full" else lambda pair: self._stream(pair, progress)
        return refined(pairs, lambda group: self._climb(group, progress), stream, progress)

    def _stream(self, pair: Pair, progress: bool) -> WeightPosterior:
        plan = Plan(self.steps, self.step_size, self.batch_size or BATCH, self.seeds, self.seed, self.checkpoint)
        kron = self.covariance == "kron"
        posterior, data = pair
        return stream(posterior, data, plan, kron=kron, samples=self.samples, patience=self.patience, progress=progress)

    def space(self, problem: Problem) -> Space:
        """Where the covariance of this kind is computed."""
        return cheapest(problem, self.steps) if self.covariance == "full" else DiagonalSpace(problem)

    def _climb(self, group: Stored, progress: bool) -> list[WeightPosterior]:
        space = self.space(group.problem)
        state, trace, ends = self.climb(space, progress)
        found = posteriors_of(group, space, state.mean, state.blocks, self.covariance == "diagonal")
        method = f"NaturalGradient({self.covariance})"
        done = []
        for posterior, row, end in zip(found, trace.reshape(len(found), -1), ends.reshape(-1).tolist(), strict=True):
            settled = None if self.patience is None else end < self.steps
            done.append(replace(posterior, refinement=Refinement(method, end, row[:end], None, settled)))
        return done

    def climb(self, space: Space, progress: bool = False) -> tuple[State, Tensor, Tensor]:
        """The state after the steps, or the best where there is patience; the ELBO after each `[…, steps]`; and after
        how many steps each problem was done with, beside others that go on."""
        noise = standard_noise(space, self.samples, self.seed)
        state = best = initial(space)
        highest = elbo(space, state)
        trace: list[Tensor] = []
        risen = torch.zeros_like(highest, dtype=torch.long)
        ends = torch.full_like(risen, self.steps)
        bar = tqdm(range(self.steps), "refining", leave=False, delay=1.0, disable=not progress)
        for step in bar:
            state = advance(space, state, self.step_size, noise)
            value = elbo(space, state)
            trace.append(value)
            bar.set_postfix_str(f"ELBO {float(value.mean()):.6g}", refresh=False)
            if self.patience is None:
                continue
            better = (value > highest) & (step < ends)
            best, highest = _chosen(better, state, best), torch.where(better, value, highest)
            risen = torch.where(better, step, risen)
            ends = torch.where(step - risen >= self.patience, ends.clamp_max(step + 1), ends)
            if bool((ends <= step + 1).all()):
                break
        return (state if self.patience is None else best), torch.stack(trace, -1), ends


def _chosen(better: Tensor, new: State, old: State) -> State:
    """Of problems side by side each in its better state. The factor is the last one's, and not to be used."""
    mean = torch.where(better.unsqueeze(-1), new.mean, old.mean)
    return replace(new, mean=mean, blocks=torch.where(better[..., None, None, None], new.blocks, old.blocks))
