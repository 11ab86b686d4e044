"""Predictions of held-out data under all priors of a grid, from one pass over the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.data import Batches
from linlap.errors import InputError
from linlap.integrators import Integrator, default_for
from linlap.network.inputs import cat, count, take, tensors_of
from linlap.network.memory import default_budget
from linlap.posteriors.samples import sampled_outputs
from linlap.predictives import BNN, GLM
from linlap.types import Gaussian, Inputs
from linlap.validation.grid import Grid, Posterior
from linlap.validation.joined import joined

Predictions = tuple[list[Any], Tensor]
"""The predictive distribution of all data under each prior, and their targets."""


def of_linear_model(glm: GLM, posterior: Posterior, batches: Batches, grid: Grid, progress: bool) -> Predictions:
    """Each batch is linearised once; what differs between priors is a contraction of it, and the integral over f."""
    likelihood, network = posterior.likelihood, posterior.network
    integrator: Integrator = default_for(likelihood) if glm.integrator is None else glm.integrator
    diagonal = glm.diagonal or integrator.variances_suffice(likelihood)
    laws, predict = posterior.under(grid.priors), integrator.in_parts(likelihood, network.device)
    found: list[list[Any]] = [[] for _ in grid.all]
    targets = []
    for x, y in _cut(_shown(batches, progress), posterior, len(grid.priors), diagonal):
        start = 0
        for part in laws.parts(x, None):
            mean, covs = laws.at(part, diagonal)
            targets.append(likelihood.prepare(y[start : start + len(mean)], mean))
            start += len(mean)
            at = zip(grid.priors, covs, strict=True)
            predicted = predict([Gaussian(mean, cov * t) for prior, cov in at for t in grid.of(prior)])
            for place, one in zip(found, predicted, strict=True):
                place.append(one)
    return _whole(found, targets)


def of_networks(bnn: BNN, posterior: Any, batches: Batches, grid: Grid, progress: bool) -> Predictions:
    """A forward pass for each sample under each prior. Samples are drawn from the same noise under all of them."""
    likelihood, network = posterior.likelihood, posterior.network
    own = bnn.generator or torch.Generator(network.device).manual_seed(0)
    members = [posterior.with_prior(prior) for prior in grid.all]
    found: list[list[Any]] = [[] for _ in members]
    targets = []
    for x, y in _gathered(batches, posterior):
        targets.append(likelihood.prepare(y, network.outputs(x)))
        for place, member in tqdm(
            list(zip(found, members, strict=True)), "validation", leave=False, delay=1.0, disable=not progress
        ):
            generator = torch.Generator(network.device).set_state(own.get_state())
            place.append(likelihood.mixture(sampled_outputs(member, x, bnn.samples, generator, checked=True)))
    return _whole(found, targets)


def _whole(found: list[list[Any]], targets: list[Tensor]) -> Predictions:
    if not targets:
        raise InputError("the validation data are empty: no batch came. Pass at least one input.")
    return [joined(parts) for parts in found], torch.cat(targets)


def _shown(batches: Batches, progress: bool) -> Iterator[tuple[Inputs, Tensor]]:
    yield from tqdm(batches, "validation", batches.length, leave=False, delay=1.0, disable=not progress)


def _cut(
    batches: Iterator[tuple[Inputs, Tensor]], posterior: Posterior, priors: int, diagonal: bool
) -> Iterator[tuple[Inputs, Tensor]]:
    """Batches of few enough inputs for their covariances under all priors."""
    network = posterior.network
    for x, y in batches:
        network.prepare(x)
        c = network.outputs_per_input
        each = 3 * priors * c * (1 if diagonal else c) * torch.finfo(network.dtype).bits // 8
        size = max(1, default_budget(network.device) // each)
        for start in range(0, count(x), size):
            yield take(x, start, start + size), y[start : start + size]


def _gathered(batches: Batches, posterior: Posterior) -> Iterator[tuple[Inputs, Tensor]]:
    """Batches of as many inputs as memory takes, however they come: weights are drawn anew for each."""
    kept: list[tuple[Inputs, Tensor]] = []
    for x, y in batches:
        if kept and _outline(x) != _outline(kept[0][0]):
            yield _joined(kept)
            kept = []
        kept.append((x, y))
        size = posterior.network.batch_for(x, seeds=1)
        while sum(len(labels) for _, labels in kept) >= size:
            x, y = _joined(kept)
            yield take(x, 0, size), y[:size]
            kept = [(take(x, size, len(y)), y[size:])] if len(y) > size else []
    if kept:
        yield _joined(kept)


def _joined(parts: list[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
    return cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def _outline(x: Inputs) -> list[torch.Size]:
    return [t.shape[1:] for t in tensors_of(x)]
