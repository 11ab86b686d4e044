"""Posteriors whose Jacobians at all data are held in memory while they are refined, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from linlap.data import TensorBatches, as_batches
from linlap.errors import LinlapError
from linlap.network.memory import available
from linlap.network.stack import batches_of, form, outline
from linlap.posteriors import WeightPosterior
from linlap.refine.base import named
from linlap.refine.problem import Problem, bytes_of, problem_of, problems_of

_BATCH = 256
_MOST = 64
"""Problems side by side; more bring no speed, and progress is seen only between groups."""
_CACHED = 8 << 20
"""Bytes of Jacobians that a CPU takes side by side: what its caches do not hold is slower together than one by one."""


Pair = tuple[WeightPosterior, Any]


@dataclass(frozen=True, eq=False)
class Stored:
    """Posteriors with their data, and their problems side by side; a single one without an axis for it."""

    posteriors: list[WeightPosterior]
    data: list[Any]
    problem: Problem


Climb = Callable[[Stored], list[WeightPosterior]]


def is_small(posterior: WeightPosterior, data: Any) -> bool:
    """Whether the Jacobians of all data, and what is computed from them, are a fraction of the free memory."""
    network = posterior.network
    if not network.outputs_per_input:
        for x, _ in as_batches(data, _BATCH, network.device):
            network.prepare(x)
            break
    return 4 * bytes_of(posterior, max(1, network.outputs_per_input)) <= available(network.device) // 4


def refined(
    pairs: Sequence[Pair], climb: Climb, stream: Callable[[Pair], WeightPosterior] | None, progress: bool
) -> list[WeightPosterior]:
    """Each posterior refined: those that are alike together, and by `stream`, if given, those that are not small."""
    many, small, keys = len(pairs), [], []
    for place, pair in enumerate(pairs):
        with named(place, many):
            small.append(is_small(*pair))
            keys.append(_key(*pair) if small[-1] else None)

    def alone(place: int) -> WeightPosterior:
        with named(place, many):
            pair = pairs[place]
            return stream(pair) if stream and not small[place] else climb(_stored([pair]))[0]

    found: dict[int, WeightPosterior] = {}
    with tqdm(total=many, desc="refining", leave=False, delay=1.0, disable=not progress or many == 1) as bar:
        for places in batches_of(keys, lambda place: _most(pairs[place][0])):
            done = _together([pairs[place] for place in places], climb) if len(places) > 1 else None
            found |= zip(places, done or [alone(place) for place in places], strict=True)
            bar.update(len(places))
    return [found[place] for place in range(many)]


def _together(pairs: list[Pair], climb: Climb) -> list[WeightPosterior] | None:
    """None where something is wrong: one by one it will be seen with which."""
    try:
        return climb(_stored(pairs))
    except LinlapError:
        return None


def _stored(pairs: list[Pair]) -> Stored:
    posteriors = [posterior for posterior, _ in pairs]
    batches = [as_batches(data, _BATCH, posterior.network.device) for posterior, data in pairs]
    problem = problem_of(posteriors[0], batches[0]) if len(pairs) == 1 else problems_of(posteriors, batches)
    return Stored(posteriors, [data for _, data in pairs], problem)


def _key(posterior: WeightPosterior, data: Any) -> Hashable | None:
    """What posteriors that can be refined side by side have in common; None for one that cannot."""
    source = as_batches(data, _BATCH, posterior.network.device).source
    if not isinstance(source, TensorBatches):
        return None
    return outline(posterior.network), posterior.structure, form(source.x), form(source.y), posterior.likelihood


def _most(posterior: WeightPosterior) -> int:
    """How many posteriors like this one to take at a time, by the free memory."""
    rows, size = posterior.curvature.totals.count * posterior.network.outputs_per_input, posterior.network.size
    each, device = 8 * (4 * rows * size + 4 * min(rows, size) ** 2), posterior.network.device
    cached = _CACHED // (8 * rows * size) if device.type == "cpu" else _MOST
    return min(_MOST, cached, available(device) // 4 // each)
