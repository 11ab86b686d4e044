"""Pulling seeds back: to the outputs of layers in one graph, or to weights one input at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from linlap.network.inputs import count, map_tensors, take
from linlap.network.tape import Call
from linlap.types import Inputs, Params

Outputs = Callable[[Params, Inputs], Tensor]


def pull_back(f: Tensor, seeds: Tensor, calls: Sequence[Call]) -> list[Tensor]:
    """∂(u·f)/∂out at every call's output for seeds u `[n, r, C]`: the output's axes, with the seeds put second.

    Where a call's output is f itself these are the seeds, and not copied.
    """
    last = [is_last(call, f) for call in calls]
    through = iter(_pull_through(f, seeds, [call for call, ends in zip(calls, last, strict=True) if not ends]))
    return [seeds if ends else next(through) for ends in last]


def is_last(call: Call, f: Tensor) -> bool:
    """Whether the call's output is f itself."""
    return call.edge.node is f.grad_fn and call.edge.output_nr == f.output_nr and call.output == f.shape


def _pull_through(f: Tensor, seeds: Tensor, calls: Sequence[Call]) -> list[Tensor]:
    if not calls:
        return []
    edges = [call.edge for call in calls]
    r = seeds.shape[1]
    if r == 0 or not f.requires_grad:
        return [f.new_zeros(call.output[0], r, *call.output[1:]) for call in calls]
    if _batching_pays(calls, f):
        try:
            with without_remarks():
                batched = torch.autograd.grad(
                    f, edges, seeds.transpose(0, 1), retain_graph=True, allow_unused=True, is_grads_batched=True
                )
        except RuntimeError:  # an operation that cannot be batched
            pass
        else:
            filled = [_present(g, f, r, *call.output) for g, call in zip(batched, calls, strict=True)]
            return [g.transpose(0, 1) for g in filled]
    # Each pass is copied to its place and let go, so that no gradient is held twice.
    stacked = [f.new_empty(call.output[0], r, *call.output[1:]) for call in calls]
    for k in range(r):
        found = torch.autograd.grad(f, edges, seeds[:, k], retain_graph=k < r - 1, allow_unused=True)
        for place, g in zip(stacked, found, strict=True):
            place[:, k] = 0.0 if g is None else g
    return stacked


_FILLS_A_GPU = 1 << 25
"""Numbers in the maps of one forward pass; measured on an H200."""


def _batching_pays(calls: Sequence[Call], f: Tensor) -> bool:
    """One batched backward pass beats single ones where launches or small products dominate: not for maps on a CPU,
    nor for maps that fill a GPU, as torch has no batched convolution backward and puts single ones together."""
    maps = [call.output.numel() for call in calls if call.spatial]
    return not maps or (f.device.type != "cpu" and sum(maps) < _FILLS_A_GPU)


def _present(g: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """A gradient, zero where the outputs do not depend on the layer."""
    return like.new_zeros(shape) if g is None else g


def sample_jacobian(outputs: Outputs, theta: Params, names: Sequence[str], x: Inputs, seeds: Tensor) -> Params | None:
    """Dense blocks `[n, r, p]` of some parameters, all inputs and seeds at once; None if that cannot be done."""
    chosen = {name: theta[name].detach() for name in names}

    def rows(one: Inputs, u: Tensor) -> Params:
        alone = map_tensors(one, lambda t: t.unsqueeze(0))
        back = torch.func.vjp(lambda params: outputs(params, alone)[0], chosen)[1]
        return torch.func.vmap(lambda seed: back(seed)[0])(u)

    try:
        axes = map_axes(x)
        with torch.inference_mode(False), without_remarks():
            found = torch.func.vmap(rows, in_dims=(axes, 0), randomness="error")(x, seeds)
    except (RuntimeError, NotImplementedError, ValueError):  # operations or branches that cannot be batched
        return None
    n, r = seeds.shape[:2]
    if any(found[name].shape != (n, r, *theta[name].shape) for name in names):
        return None
    return {name: found[name].detach().reshape(n, r, -1) for name in names}


@contextmanager
def without_remarks() -> Iterator[None]:
    """torch says which operations it batches by a loop; whoever trained the model cannot mend that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def map_axes(x: Inputs) -> object:
    """What `vmap` needs to be told: the first axis of tensors, nothing of the rest."""
    if isinstance(x, Tensor):
        return 0
    if isinstance(x, dict):
        return {key: 0 if isinstance(value, Tensor) else None for key, value in x.items()}
    return tuple(0 if isinstance(value, Tensor) else None for value in x)


def one_by_one(outputs: Outputs, theta: Params, names: Sequence[str], x: Inputs, seeds: Tensor) -> Params:
    """Dense blocks `[n, r, p]` of some parameters, one input and one seed at a time: right for any operation."""
    chosen = {name: theta[name].detach() for name in names}
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {name: p.clone().requires_grad_(True) for name, p in chosen.items()}
        for index in range(count(x)):
            f = outputs(leaves, take(x, index, index + 1))[0]
            for u in seeds[index]:
                found: tuple[Tensor | None, ...] = (None,) * len(leaves)
                if f.requires_grad:
                    found = torch.autograd.grad(f, list(leaves.values()), u, retain_graph=True, allow_unused=True)
                for (name, leaf), g in zip(leaves.items(), found, strict=True):
                    rows[name].append(torch.zeros_like(leaf) if g is None else g)
    n, r = seeds.shape[:2]
    return {name: torch.stack(found).detach().reshape(n, r, -1) for name, found in rows.items()}
