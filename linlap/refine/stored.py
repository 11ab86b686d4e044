"""Posteriors whose Jacobians at all data are held in memory while they are refined, many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from linlap.data import as_batches
from linlap.network.memory import available
from linlap.posteriors import WeightPosterior
from linlap.refine.problem import Problem, bytes_of, problem_of

_BATCH = 256
_MOST = 64
"""Problems side by side; more bring no speed, and progress is seen only between groups."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Posteriors, and their problems side by side; a single one without an axis for it."""

    posteriors: list[WeightPosterior]
    problem: Problem


def is_small(posterior: WeightPosterior, data: Any) -> bool:
    """Whether the Jacobians of all data, and what is computed from them, are a fraction of the free memory."""
    network = posterior.network
    if not network.outputs_per_input:
        for x, _ in as_batches(data, _BATCH, network.device):
            network.prepare(x)
            break
    return 4 * bytes_of(posterior, max(1, network.outputs_per_input)) <= available(network.device) // 4


def groups(pairs: Sequence[tuple[WeightPosterior, Any]], progress: bool) -> Iterator[Stored]:
    """Neighbours of one size and likelihood together, as many as a quarter of the free memory holds."""
    bar = tqdm(pairs, "linearising", leave=False, delay=1.0, disable=not progress or len(pairs) == 1)
    kept: list[tuple[WeightPosterior, Problem]] = []
    for posterior, data in bar:
        problem = problem_of(posterior, as_batches(data, _BATCH, posterior.network.device))
        if kept and not (_alike(kept[0][1], problem) and _fits(problem, len(kept) + 1)):
            yield _together(kept)
            kept = []
        kept.append((posterior, problem))
    if kept:
        yield _together(kept)


def _alike(one: Problem, other: Problem) -> bool:
    same = one.J.shape == other.J.shape and one.f.shape == other.f.shape and one.y.shape == other.y.shape
    return same and one.likelihood == other.likelihood and one.J.device == other.J.device


def _fits(problem: Problem, count: int) -> bool:
    small = min(problem.size, problem.rows)
    each = 8 * (3 * problem.J.numel() + 4 * small**2)
    return count <= _MOST and count * each <= available(problem.J.device) // 4 + count * 8 * problem.J.numel()


def _together(kept: list[tuple[WeightPosterior, Problem]]) -> Stored:
    posteriors, problems = [posterior for posterior, _ in kept], [problem for _, problem in kept]
    return Stored(posteriors, problems[0] if len(kept) == 1 else Problem.stack(problems))
