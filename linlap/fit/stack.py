"""Curvatures of many networks at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from tqdm.auto import tqdm

from linlap.curvature import Curvature, Diagonal, Full, Totals, diagonal_of_rows, full_of_rows
from linlap.data import TensorBatches
from linlap.distributed import world_size
from linlap.errors import LinlapError, about
from linlap.fit.task import Task
from linlap.network.inputs import cat, count
from linlap.network.memory import available
from linlap.network.stack import batches_of, form, outline, side_by_side

_SMALL = 1 << 17
"""Numbers of a Jacobian above which a CPU does better without one, where only a diagonal is asked for."""


def curvatures(tasks: Sequence[Task]) -> list[Curvature]:
    """Of each task: those that are alike together, as many as a quarter of the free memory holds."""
    found: dict[int, Curvature] = {}
    keys = [_key(task) for task in tasks]
    with tqdm(total=len(tasks), desc="fitting", leave=False, delay=1.0, disable=not tasks[0].options.progress) as bar:
        for places in batches_of(keys, lambda place: _most(place, tasks[place])):
            found |= zip(places, _fitted(places, [tasks[place] for place in places], keys[places[0]]), strict=True)
            bar.update(len(places))
    return [found[place] for place in range(len(tasks))]


def _fitted(places: list[int], tasks: list[Task], key: Hashable | None) -> list[Curvature]:
    """Together, or one by one: also where something is wrong, to say with which."""
    if key is not None and _most(places[0], tasks[0]):
        try:
            with torch.inference_mode(False), torch.no_grad():
                return _together(tasks)
        except LinlapError:
            pass
    found = []
    for place, task in zip(places, tasks, strict=True):
        with about(f"models[{place}]"):
            found.append(task.curvature())
    return found


def _key(task: Task) -> Hashable | None:
    """What tasks that can be done together have in common; None for one that is better done by itself."""
    source, options = task.batches.source, task.options
    suited = isinstance(options.structure, Full | Diagonal) and options.seeds is None and world_size() == 1
    if not suited or not isinstance(source, TensorBatches):
        return None
    return outline(task.network), form(source.x), form(source.y), task.likelihood


def _most(place: int, task: Task) -> int:
    """How many tasks like this one a quarter of the free memory holds."""
    network, source = task.network, task.batches.source
    with about(f"models[{place}]"):
        x, _ = next(iter(task.batches))
        network.prepare(x)
    n = count(source.x) if isinstance(source, TensorBatches) else 0
    numbers = n * network.outputs_per_input * network.size
    if isinstance(task.options.structure, Diagonal) and network.device.type == "cpu" and numbers > _SMALL:
        return 0
    each = 4 * numbers
    if isinstance(task.options.structure, Full) and 2 * n * network.outputs_per_input > network.size:
        each += 2 * network.size**2
    return available(network.device) // (4 * 8 * each)


def _together(tasks: list[Task]) -> list[Curvature]:
    pairs = [list(zip(*task.batches, strict=True)) for task in tasks]
    xs, ys = [cat(x) for x, _ in pairs], [torch.cat(y) for _, y in pairs]
    f, j = side_by_side([task.network for task in tasks], xs)
    root = tasks[0].likelihood.hessian_sqrt(f)
    of_rows = full_of_rows if isinstance(tasks[0].options.structure, Full) else diagonal_of_rows
    found = []
    for task, y, own, s, rows in zip(tasks, ys, f, root, j, strict=True):
        task.likelihood.check_outputs(own.shape[1])
        fit = task.likelihood.log_prob(task.likelihood.prepare(y, own), own).double().sum()
        found.append(of_rows(task.network.shapes, Totals(len(own), float(fit)), (s.mT @ rows).flatten(0, 1)))
    return found
