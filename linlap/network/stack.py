"""Networks of one architecture side by side: outputs and dense Jacobians of all in one batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from linlap.network.agreement import close
from linlap.network.inputs import arguments, as_matrix, count, map_tensors, output_tensor, take
from linlap.network.memory import default_budget
from linlap.network.network import Network, as_written
from linlap.network.pullback import map_axes, without_remarks
from linlap.types import Inputs, Params


def outline(network: Network) -> Hashable:
    """What networks that can be stacked have in common: the architecture, the device, the uncertain weights."""
    tensors = tuple((name, t.shape, t.dtype) for name, t in _tensors(network.model).items())
    kinds = tuple(type(module) for module in network.model.modules())
    return repr(network.model), kinds, tensors, tuple(network.names), network.device


def form(x: Inputs) -> Hashable:
    """What inputs that can be stacked have in common."""
    if isinstance(x, Tensor):
        return x.shape, x.dtype
    if isinstance(x, Mapping):
        return tuple((key, form(value)) for key, value in x.items())
    return tuple(map(form, x)) if isinstance(x, tuple) else repr(x)


def batches_of(keys: Sequence[Hashable | None], most: Callable[[int], int]) -> Iterator[list[int]]:
    """Places of equal keys together, so many at a time as `most` says of the first; None is like nothing else."""
    left = list(range(len(keys)))
    while left:
        first = left[0]
        alike = [place for place in left if place == first or (keys[place] is not None and keys[place] == keys[first])]
        left = [place for place in left if place not in set(alike)]
        size = 1 if len(alike) == 1 else max(1, most(first))
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def side_by_side(networks: Sequence[Network], xs: Sequence[Inputs]) -> tuple[Tensor, Tensor]:
    """f `[k, n, C]` and J `[k, n, C, P]` of networks of one outline at inputs of one form.

    On a CPU one network after the other: their layers' own blocks take less than one batch of all, as measured.
    """
    found = jacobians(networks, xs) if networks[0].device.type != "cpu" else None
    if found is not None:
        return found
    f, j = zip(*[_by_itself(network, x) for network, x in zip(networks, xs, strict=True)], strict=True)
    return torch.stack(f), torch.stack(j)


def _by_itself(network: Network, x: Inputs) -> tuple[Tensor, Tensor]:
    network.prepare(x)
    size = network.batch_for(x, dense=True)
    lins = [network.linearize(take(x, start, start + size), once=True) for start in range(0, count(x), size)]
    return torch.cat([lin.mean for lin in lins]), torch.cat([lin.jacobian.dense() for lin in lins])


def jacobians(networks: Sequence[Network], xs: Sequence[Inputs]) -> tuple[Tensor, Tensor] | None:
    """What `side_by_side` gives, for all networks at once.

    None where torch cannot batch the model, or gets another answer than a network by itself: outputs of all are
    compared at a few inputs, Jacobians of the first and the last.
    """
    first = networks[0]
    first.prepare(xs[0])
    for network, x in zip(networks, xs, strict=True):
        network.check(x)
    try:
        with torch.inference_mode(False), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), as_written():
            f, j = _batched(networks, _stacked(xs))
    except (RuntimeError, NotImplementedError, ValueError):  # operations or branches that cannot be batched
        return None
    for k, (network, x) in enumerate(zip(networks, xs, strict=True)):
        network.trust(first)
        few = take(x, 0, 2)
        if not close(network.outputs(few), f[k, :2]):
            return None
        if k in (0, len(networks) - 1) and not close(network.linearize(few, once=True).jacobian.dense(), j[k, :2]):
            return None
    return f, j


def _batched(networks: Sequence[Network], x: Inputs) -> tuple[Tensor, Tensor]:
    first = networks[0]
    tensors = [_tensors(network.model) for network in networks]
    placed = {place: torch.stack([each[place].detach() for each in tensors]) for place in tensors[0]}
    own = first.places
    chosen = {name: placed[place] for place, name in own.items()}
    fixed = {place: t for place, t in placed.items() if place not in own}

    def outputs(params: Params, fixed: Params, one: Inputs) -> tuple[Tensor, Tensor]:
        args, kwargs = arguments(first.model, map_tensors(one, lambda t: t.unsqueeze(0)))
        given = fixed | {place: params[name] for place, name in own.items()}
        f = as_matrix(output_tensor(functional_call(first.model, given, args, kwargs, tie_weights=False)), 1)[0]
        return f, f

    axes = map_axes(map_tensors(x, lambda t: t[0]))
    one_network = torch.func.vmap(
        torch.func.jacrev(outputs, has_aux=True), in_dims=(None, None, axes), randomness="error"
    )
    every = torch.func.vmap(one_network, in_dims=(0, 0, axes), randomness="error")
    fs, js = [], []
    for part in _parts(first, x, len(networks)):
        with without_remarks():
            rows, f = every(chosen, fixed, part)
        fs.append(f)
        js.append(torch.cat([rows[name].flatten(3) for name in first.names], -1))
    return torch.cat(fs, 1), torch.cat(js, 1)


def _tensors(model: nn.Module) -> Params:
    """Every parameter and buffer by each of its places."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(model.named_buffers(remove_duplicate=False))}


def _stacked(xs: Sequence[Inputs]) -> Inputs:
    def joined(values: Sequence[Any]) -> Any:
        return torch.stack(list(values)) if isinstance(values[0], Tensor) else values[0]

    if isinstance(xs[0], Tensor):
        return joined(xs)
    if isinstance(xs[0], Mapping):
        return {key: joined([x[key] for x in xs]) for key in xs[0]}
    return tuple(joined(values) for values in zip(*xs, strict=True))


def _parts(network: Network, x: Inputs, many: int) -> Iterator[Inputs]:
    """Inputs `[k, n', …]`, few enough at a time for three times their Jacobians."""
    n = count(map_tensors(x, lambda t: t[0]))
    each = 3 * many * network.outputs_per_input * network.size * torch.finfo(network.dtype).bits // 8
    size = max(1, default_budget(network.device) // each)
    for start in range(0, n, size):
        yield map_tensors(x, partial(_columns, start=start, stop=start + size))


def _columns(t: Tensor, start: int, stop: int) -> Tensor:
    return t[:, start:stop]
