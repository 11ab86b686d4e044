"""Inputs as models take them: a tensor, a tuple of tensors or a dict of them, with the data on the first axis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linlap.checks import all_finite
from linlap.errors import InputError, NotFiniteError
from linlap.types import Inputs, Params


def tensors_of(x: Inputs) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    values = x.values() if isinstance(x, Mapping) else x
    return [value for value in values if isinstance(value, Tensor)]


def map_tensors(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same structure with every tensor changed and everything else kept."""

    def one(value: Any) -> Any:
        return change(value) if isinstance(value, Tensor) else value

    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Mapping):
        return {key: one(value) for key, value in x.items()}
    return tuple(one(value) for value in x)


def check_form(x: Inputs) -> None:
    """A tensor, tuple or mapping with at least one tensor, all with equally many inputs."""
    if not isinstance(x, Tensor | tuple | list | Mapping):
        raise InputError(
            f"inputs are of type {type(x).__name__}; pass a torch.Tensor, a tuple of tensors, or a dict of tensors."
        )
    found = tensors_of(x)
    if not found:
        raise InputError("the inputs hold no tensor; pass a tensor, or a tuple or dict with at least one.")
    sizes = {tuple(t.shape) for t in found}
    if any(len(shape) == 0 for shape in sizes) or len({shape[0] for shape in sizes}) > 1:
        raise InputError(f"input tensors of shapes {sorted(sizes)} do not share a first axis of data; stack them so.")


def check_numbers(x: Inputs) -> None:
    """At least one input, and only finite numbers."""
    found = tensors_of(x)
    if not len(found[0]):
        raise InputError("there are no inputs (the first axis has length 0); pass at least one.")
    for t in found:
        if t.is_floating_point() and not all_finite(t):
            raise NotFiniteError(
                f"the inputs (shape {tuple(t.shape)}) have NaN or infinite entries; remove or impute them first."
            )


def check_like(t: Any, what: str, like: Tensor, shape: Sequence[int | str]) -> Tensor:
    """A tensor of this shape, of the dtype and on the device of another."""
    if not isinstance(t, Tensor) or tuple(t.shape) != tuple(shape) or (t.dtype, t.device) != (like.dtype, like.device):
        found = f"{t.dtype} {list(t.shape)} on {t.device}" if isinstance(t, Tensor) else f"a {type(t).__name__}"
        wanted = ", ".join(map(str, shape))
        raise InputError(f"{what} is {found}; pass a tensor {like.dtype} [{wanted}] on {like.device}.")
    return t


def check_weights(v: Any, theta: Params) -> None:
    """One tensor for each of the weights."""
    names = set(v) if isinstance(v, Mapping) else None
    if names != theta.keys():
        given = sorted(map(str, names)) if names is not None else f"a {type(v).__name__}"
        raise InputError(f"v is for {given}; pass a dict with a tensor for each of {sorted(theta)}.")
    for name, p in theta.items():
        check_like(v[name], f"v[{name!r}]", p, tuple(p.shape))


def count(x: Inputs) -> int:
    """The number of inputs n."""
    return int(tensors_of(x)[0].shape[0])


def take(x: Inputs, start: int, stop: int) -> Inputs:
    return map_tensors(x, lambda t: t[start:stop])


def cat(parts: Sequence[Inputs]) -> Inputs:
    """Several batches of one form as one; what is no tensor is taken from the first."""

    def joined(values: Sequence[Any]) -> Any:
        return torch.cat(list(values)) if isinstance(values[0], Tensor) else values[0]

    first = parts[0]
    try:
        if isinstance(first, Tensor):
            return joined(parts)
        if isinstance(first, Mapping):
            return {key: joined([part[key] for part in parts]) for key in first}
        return tuple(joined(values) for values in zip(*parts, strict=True))
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the inputs cannot be put together: {error}; pad them to one shape.") from error


def arguments(model: nn.Module, x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How x is passed: a tuple as positional arguments, a dict by name if `forward` takes its keys, else whole."""
    if isinstance(x, Mapping):
        try:
            inspect.signature(model.forward).bind(**x)
        except TypeError:
            return (dict(x),), {}
        return (), dict(x)
    if isinstance(x, Tensor):
        return (x,), {}
    return tuple(x), {}


def output_tensor(result: Any) -> Tensor:
    """The tensor in what a model returned: itself, or the `logits` of a record such as Hugging Face's."""
    if isinstance(result, Tensor):
        return result
    logits = getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InputError(
        f"the model returned {type(result).__name__}; it must return a tensor [n] or [n, C], or an object with such a "
        "tensor as `.logits`. Wrap it in a module that returns the outputs to be uncertain about."
    )


def as_matrix(f: Tensor, n: int) -> Tensor:
    """Outputs `[n, C]`, also from `[n]`."""
    if f.ndim == 1 and f.shape[0] == n:
        return f.unsqueeze(1)
    if f.ndim == 2 and f.shape[0] == n and f.shape[1] > 0:
        return f
    raise InputError(
        f"the model's output has shape {tuple(f.shape)} for {n} inputs; it must be [n] or [n, C]. For outputs per "
        "pixel or token, wrap the model so that it returns those of interest, flattened to [n, C]."
    )
