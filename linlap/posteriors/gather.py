"""What a Gaussian process takes from data: the inputs to keep, and what the others say of those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.curvature import Totals
from linlap.data import Batches
from linlap.distributed import sum_over_processes
from linlap.errors import InputError
from linlap.inducing import Inducing
from linlap.jacobian import Jacobian, settled
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.inputs import cat, count, map_tensors, take
from linlap.posteriors.points import Groups, Points, moved, root_of, weighted
from linlap.sweep import DataSweep
from linlap.types import Inputs


def projected(
    points: Points,
    groups: Groups,
    root: Tensor,
    batches: Batches,
    likelihood: Likelihood,
    shift: Tensor | None = None,
) -> tuple[Tensor, Totals]:
    """R⁻¹ (Σ k Λ kᵀ) R⁻ᵀ over data, and their totals; at weights moved by `shift`, where there is one."""
    if shift is not None:
        return _projected_at(points, groups, root, batches, likelihood, shift)
    root_of_data = root_of(likelihood, points.coupled)
    sweep = DataSweep(points.network, batches, likelihood, root=root_of_data, progress=points.progress)
    small = root.to(points.network.dtype)

    def measure(jacobian: Jacobian) -> Tensor:
        k = points.cross(groups, settled(jacobian, points.coupled))
        white = torch.linalg.solve_triangular(small, k, upper=False)
        return (white @ white.mT).double()

    return sweep.sum(measure, "projecting the data"), sweep.totals


def _projected_at(
    points: Points, groups: Groups, root: Tensor, batches: Batches, likelihood: Likelihood, shift: Tensor
) -> tuple[Tensor, Totals]:
    total, count_of_data, fit = torch.zeros_like(root), 0, 0.0
    for part in kernels(points, groups, batches, "projecting the data"):
        f = part.f + moved(part.features, shift).to(part.f.dtype)
        fit += float(likelihood.log_prob(likelihood.prepare(part.y, f), f).double().sum())
        count_of_data += len(f)
        k = weighted(part.k, likelihood.hessian_sqrt(f).to(part.k.dtype), points.coupled)
        white = torch.linalg.solve_triangular(root.to(k.dtype), k, upper=False)
        total += (white @ white.mT).double()
    if not count_of_data:
        raise InputError("the data are empty: no batch came. Pass at least one input.")
    whole: dict[str, Any] = sum_over_processes({"seen": total, "totals": Totals(count_of_data, fit)})
    return whole["seen"], whole["totals"]


class Kernels(NamedTuple):
    """Some data: f(x; θ*) `[n, C]`, features, targets as given, and kernels with the points `[G, m, columns]`."""

    f: Tensor
    features: Jacobian
    y: Tensor
    k: Tensor


def kernels(points: Points, groups: Groups, batches: Batches, goal: str) -> Iterator[Kernels]:
    """One pass over data, in parts small enough for memory."""
    network = points.network
    bar = tqdm(batches, goal, batches.length, leave=False, delay=1.0, disable=not points.progress)
    for x, y in bar:
        network.prepare(x)
        size = network.batch_for(x)
        for start in range(0, count(x), size):
            with torch.no_grad():
                lin = network.linearize(take(x, start, start + size), once=True)
                features = points.settled(lin.jacobian)
            yield Kernels(lin.mean, features, y[start : start + size], points.cross(groups, features))


def outputs_at(network: Network, x: Inputs, shift: Tensor, coupled: bool) -> Tensor:
    """The linear model's f `[n, C]` at weights moved by `[G, P]`."""
    network.prepare(x)
    size = network.batch_for(x)
    done = []
    with torch.no_grad():
        for start in range(0, count(x), size):
            lin = network.linearize(take(x, start, start + size), once=True)
            done.append(lin.mean + moved(settled(lin.jacobian, coupled), shift))
    return torch.cat(done)


@dataclass(frozen=True, eq=False)
class Selection:
    """Inputs in the order of the data, their targets, f(x; θ*) `[m, C]`, log p(y | f) of each, and how many data
    there are."""

    x: Inputs
    y: Tensor
    f: Tensor
    fits: Tensor
    seen: int


def chosen(
    network: Network, batches: Batches, likelihood: Likelihood, inducing: Inducing, progress: bool
) -> tuple[Inputs, Tensor, int]:
    """The inputs with the largest scores, log p(y | f) of each, and how many data there are."""
    found = selection(network, batches, likelihood, inducing, progress)
    return found.x, found.fits, found.seen


def selection(
    network: Network, batches: Batches, likelihood: Likelihood, inducing: Inducing, progress: bool
) -> Selection:
    """The data with the largest scores."""
    wanted, scores = inducing.wanted, inducing.scores()
    parts: list[_Part] = []
    seen = 0
    bar = tqdm(batches, "choosing inputs", batches.length, leave=False, delay=1.0, disable=not progress)
    for x, y in bar:
        f = network.outputs(x)
        likelihood.check_outputs(f.shape[1])
        y = likelihood.prepare(y, f)
        fits = likelihood.log_prob(y, f).double().cpu()
        parts.append(_Part(x, y, f, torch.stack([scores(likelihood, f), fits])))
        seen += count(x)
        if wanted is not None and sum(len(part.f) for part in parts) > max(4 * wanted, 4096):
            parts = [_best(parts, wanted)]
    if not seen:
        raise InputError("the data are empty: no batch came. Pass at least one input.")
    if wanted is not None and wanted > seen:
        raise InputError(f"{inducing} asks for {wanted} inputs, but there are {seen} data; pass {seen} or fewer.")
    whole = _joined(parts) if wanted is None else _best(parts, wanted)
    return Selection(whole.x, whole.y, whole.f, whole.numbers[1], seen)


class _Part(NamedTuple):
    """Some data; their scores and fits `[2, n]`."""

    x: Inputs
    y: Tensor
    f: Tensor
    numbers: Tensor


def _joined(parts: list[_Part]) -> _Part:
    xs, ys, fs, numbers = zip(*parts, strict=True)
    return _Part(cat(xs), torch.cat(ys), torch.cat(fs), torch.cat(numbers, dim=1))


def _best(parts: list[_Part], wanted: int) -> _Part:
    x, y, f, numbers = _joined(parts)
    order = torch.argsort(numbers[0], descending=True, stable=True)[:wanted].sort().values
    x, there = map_tensors(x, lambda t: t[order.to(t.device)]), order.to(f.device)
    return _Part(x, y[there], f[there], numbers[:, order])
