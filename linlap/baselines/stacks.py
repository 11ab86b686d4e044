"""Many training problems of one architecture, side by side: weights `[K, P]`, each network's own data `[K, n, …]`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from linlap.checks import check_pairs
from linlap.data import Batches, TensorBatches, as_batches
from linlap.errors import InputError, LinlapWarning
from linlap.fit import check_kinds
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.inputs import cat, count, map_tensors, take, tensors_of
from linlap.network.snapshot import private_copy, unwrapped
from linlap.posteriors import as_prior
from linlap.prior import Prior
from linlap.refine.minibatches import Minibatches
from linlap.types import Inputs, Params

_MOST = 128
"""Networks side by side; more bring no speed."""
_READ = 512
"""Inputs that are looked at in one go while data are counted."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs and targets of each network `[K, n, …]`, and how many inputs each of these stands for."""

    x: Inputs
    y: Tensor
    weight: float


@dataclass(frozen=True, eq=False)
class Problem:
    """One network, at the weights it starts from, its data, and the prior with its precision `[P]`.

    `data` are tensors (x, y) where all of them are at hand, y as the likelihood wants it.
    """

    name: str
    model: nn.Module
    network: Network
    data: Any
    total: int
    prior: Prior
    precision: Tensor

    @property
    def tensors(self) -> TensorBatches | None:
        return self.data if isinstance(self.data, TensorBatches) else None

    def log_likelihood(self, likelihood: Likelihood, network: Network) -> float:
        """Σ log p(y | f) over the data, in one pass."""
        total = 0.0
        tensors = self.tensors
        data = self.data if tensors is None else (tensors.x, tensors.y)
        for x, y in as_batches(data, _READ, network.device):
            with torch.no_grad():
                f = network.outputs_at({}, x)
                total += float(likelihood.log_prob(likelihood.prepare(y, f), f).double().sum())
        return total

    def trained(self, theta: Tensor) -> nn.Module:
        """A copy of the user's model with other weights `[P]`, in evaluation mode."""
        twin = private_copy(self.model)
        flags = {name: p.requires_grad for name, p in self.model.named_parameters()}
        weights = self.network.named(theta)
        for name, p in twin.named_parameters():
            if name in weights:
                p.data.copy_(weights[name])
            p.requires_grad_(flags[name])
        return twin


@dataclass(frozen=True, eq=False)
class Stack:
    """Problems that are solved as one; `places` says where they stood in the user's lists."""

    problems: list[Problem]
    places: list[int]
    likelihood: Likelihood

    @property
    def network(self) -> Network:
        """What all of them compute, given their weights."""
        return self.problems[0].network

    @cached_property
    def theta(self) -> Tensor:
        """The weights they start from `[K, P]`."""
        return torch.stack([problem.network.vector() for problem in self.problems])

    @cached_property
    def precision(self) -> Tensor:
        """Of their priors `[K, P]`."""
        return torch.stack([problem.precision for problem in self.problems])

    @property
    def names(self) -> list[str]:
        return [problem.name for problem in self.problems]

    def apply(self, function: Callable[..., Tensor], *stacked: Any) -> Tensor:
        """A function of one network's tensors, for all of them `[K, …]`; a network by itself runs as it is.

        Random numbers are the same for all, as for each by itself.
        """
        if len(self.problems) == 1:
            return function(*(map_tensors(part, lambda t: t[0]) for part in stacked)).unsqueeze(0)
        return vmap(function, randomness="same")(*stacked)

    def outputs(self, theta: Tensor, x: Inputs) -> Tensor:
        """f `[K, n, C]` with weights `[K, P]`."""
        return self.apply(self.network.outputs_at, self.network.named(theta), x)

    def glimpse(self) -> Inputs:
        """Some inputs of the first network."""
        first = self.problems[0]
        if first.tensors is not None:
            return first.tensors.x
        return next(iter(as_batches(first.data, _READ, first.network.device)))[0]

    def log_likelihood(self, f: Tensor, batch: Batch) -> Tensor:
        """Σ log p(y | f) over all data `[K]`, as far as a batch tells."""
        return batch.weight * self.likelihood.log_prob(batch.y, f).sum(-1)

    def batches(self, size: int | None, seed: int) -> Iterator[Batch]:
        """Without end: all data, or `size` inputs at a time in an order that the seed decides."""
        first = self.problems[0]
        if first.tensors is None:
            return self._streamed(first, size or _READ, seed)
        whole = self._whole()
        if size is None or size >= first.total:
            return itertools.repeat(whole)
        return self._parts(whole, first.total, size, seed)

    def _whole(self) -> Batch:
        data = [problem.tensors for problem in self.problems if problem.tensors is not None]
        x, y = _stacked([part.x for part in data]), _stacked([part.y for part in data])
        return Batch(x, y, 1.0)

    def _parts(self, whole: Batch, total: int, size: int, seed: int) -> Iterator[Batch]:
        index = torch.arange(total)
        for rows, _ in Minibatches((index, index), size, torch.device("cpu"), seed).since(0):
            here = rows.to(whole.y.device)
            x = map_tensors(whole.x, lambda t, here=here: t[:, here])  # type: ignore[misc]
            yield Batch(x, whole.y[:, here], total / len(rows))

    def _streamed(self, problem: Problem, size: int, seed: int) -> Iterator[Batch]:
        for x, y in Minibatches(problem.data, size, problem.network.device, seed).since(0):
            problem.network.check(x)
            y = self.likelihood.prepare(y, _like_outputs(problem.network, x))
            yield Batch(map_tensors(x, lambda t: t.unsqueeze(0)), y.unsqueeze(0), problem.total / count(x))


def _stacked(parts: Sequence[Inputs]) -> Inputs:
    """Side by side; what is the same for all is not copied."""
    first = parts[0]
    if all(part is first for part in parts):
        return map_tensors(first, lambda t: t.expand(len(parts), *t.shape))
    return cat([map_tensors(part, lambda t: t.unsqueeze(0)) for part in parts])


def _like_outputs(network: Network, x: Inputs) -> Tensor:
    """Zeros in the shape of f(x) `[n, C]`."""
    with torch.no_grad():
        few = network.outputs_at({}, take(x, 0, 2))
    return few.new_zeros(count(x), few.shape[1])


def problems_of(models: Any, data: Any, likelihood: Likelihood, prior: Any, *, tempered: bool = True) -> list[Problem]:
    """One problem, or one for each model of a list with its own data; a prior for each of them, or one for all."""
    if not isinstance(models, list | tuple):
        return [_problem("the network", models, data, likelihood, _prior(prior, tempered))]
    check_pairs(models, data, "models")
    priors = prior if isinstance(prior, list | tuple) else [prior] * len(models)
    if len(priors) != len(models):
        raise InputError(f"{len(models)} models and {len(priors)} priors; pass one prior for each, or one for all.")
    each = zip(models, data, priors, strict=True)
    return [
        _problem(f"network {k} of the list", model, own, likelihood, _prior(one, tempered))
        for k, (model, own, one) in enumerate(each)
    ]


def _prior(given: Any, tempered: bool) -> Prior:
    prior = as_prior(given)
    if not tempered and float(prior.temperature) != 1.0:
        raise InputError(
            f"a prior with temperature {float(prior.temperature):g}, which plays no part in this; pass "
            "ll.Prior(precision) without one."
        )
    return prior


def _problem(name: str, model: Any, data: Any, likelihood: Any, prior: Prior) -> Problem:
    check_kinds(model, likelihood)
    model = unwrapped(model)
    network = Network(model)
    by_parameter = prior.by_parameter(network.shapes, network.device)
    each = [by_parameter[name].expand(shape.numel()) for name, shape in network.shapes.items()]
    precision = torch.cat(each).to(network.dtype)
    batches = as_batches(data, _READ, network.device)
    source = batches.source
    if not isinstance(source, TensorBatches):
        total = sum(count(x) for x, _ in batches)
        if not total:
            raise InputError("the data are empty: no batch came. Pass at least one input.")
        return Problem(name, model, network, data, total, prior, precision)
    total = count(source.x)
    ((x, y),) = Batches([(source.x, source.y)], network.device, 1)
    network.check(x)
    y = likelihood.prepare(y, _like_outputs(network, x))
    return Problem(name, model, network, TensorBatches(x, y, total), total, prior, precision)


def stacks_of(problems: Sequence[Problem], likelihood: Likelihood) -> list[Stack]:
    """Problems of one architecture with equally many data go side by side, if torch can run them so."""
    groups: list[list[int]] = []
    for place, problem in enumerate(problems):
        alike = (group for group in groups if len(group) < _MOST and _alike(problems[group[0]], problem))
        group = next(alike, None)
        if group is None:
            groups.append(group := [])
        group.append(place)
    stacks = (Stack([problems[place] for place in group], group, likelihood) for group in groups)
    return [part for stack in stacks for part in _runnable(stack)]


def _alike(one: Problem, other: Problem) -> bool:
    """Whether two problems differ in weights, numbers of their data and priors alone, as far as can be seen."""
    if one.tensors is None or other.tensors is None or _form(one) != _form(other):
        return False
    return same_rest(one.network, other.network)


def _form(problem: Problem) -> tuple[Any, ...]:
    tensors, network = problem.tensors, problem.network
    assert tensors is not None
    data = [(t.shape, t.dtype) for t in (*tensors_of(tensors.x), tensors.y)]
    return type(problem.model), repr(problem.model), network.shapes, network.dtype, network.device, data


def same_rest(one: Network, other: Network) -> bool:
    """Whether they compute with the same numbers besides their weights: frozen ones and buffers."""

    def rest(network: Network) -> Params:
        held = {**dict(network.model.named_parameters()), **dict(network.model.named_buffers())}
        return {name: t for name, t in held.items() if name not in network.theta}

    mine, its = rest(one), rest(other)
    return mine.keys() == its.keys() and all(torch.equal(t, its[name]) for name, t in mine.items())


def _runnable(stack: Stack) -> list[Stack]:
    """The stack, or each problem by itself where that gives other outputs, or torch cannot run them together."""
    if len(stack.problems) == 1:
        return [stack]
    few = [replace(problem, data=_first_rows(problem)) for problem in stack.problems]
    singles = [Stack([problem], [place], stack.likelihood) for problem, place in zip(few, stack.places, strict=True)]
    with torch.no_grad():
        alone = torch.cat([_start(single) for single in singles])
        try:
            together = _start(replace(stack, problems=few))
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = f"torch.vmap cannot run it: {str(error).splitlines()[0]}"
        else:
            tolerance = 1e-8 if alone.dtype == torch.float64 else 1e-3
            if torch.allclose(together, alone, rtol=tolerance, atol=tolerance):
                return [stack]
            reason = "networks that look the same have other outputs side by side"
    warnings.warn(f"{len(alone)} networks go one by one, which is slower: {reason}.", LinlapWarning, stacklevel=4)
    pairs = zip(stack.problems, stack.places, strict=True)
    return [Stack([problem], [place], stack.likelihood) for problem, place in pairs]


def _first_rows(problem: Problem) -> TensorBatches:
    assert problem.tensors is not None
    return TensorBatches(take(problem.tensors.x, 0, 2), problem.tensors.y[:2], 2)


def _start(stack: Stack) -> Tensor:
    """f `[K, n, C]` of all data at the weights that the networks come with."""
    return stack.outputs(stack.theta, next(stack.batches(None, 0)).x)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's own generators start from a seed, and are put back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
