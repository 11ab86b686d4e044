"""Data in every form they come in, as batches (x, y) that can be gone through again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from linlap.checks import is_whole
from linlap.errors import InputError
from linlap.network.inputs import check_form, count, map_tensors, take
from linlap.types import Inputs

_FORMS = "(X, y) tensors, a Dataset, a DataLoader, or a list or other re-iterable of batches (x, y)"


@dataclass(frozen=True)
class Batches:
    """Batches (x, y) of some source, on one device."""

    source: Iterable[Any]
    device: torch.device
    length: int | None

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in self.source:
            x, y = split_batch(batch)
            x, y = _as_tensors(x), _as_tensors(y)
            check_form(x)
            if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != count(x):
                shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
                raise InputError(f"a batch of {count(x)} inputs came with targets {shape}; pass one target an input.")
            # Loaders yield CPU tensors whatever the model is on; that move is the loader's own business.
            yield map_tensors(x, self._move), self._move(y)

    def _move(self, t: Tensor) -> Tensor:
        return t.to(self.device) if t.device.type == "cpu" else t


def as_batches(data: Any, batch_size: int, device: torch.device) -> Batches:
    """Any accepted form of data as re-iterable batches."""
    if not is_whole(batch_size):
        raise InputError(f"batch_size={batch_size!r}; pass a positive number of inputs, for instance 256.")
    if isinstance(data, tuple) and len(data) == 2 and not _is_pair_of_batches(data):
        x, y = _as_tensors(data[0]), _as_tensors(data[1])
        tensors = TensorBatches(x, y, batch_size)
        return Batches(tensors, device, len(tensors))
    if isinstance(data, DataLoader):
        return Batches(data, device, _length(data))
    if isinstance(data, Dataset):
        # A loader draws a number whether it shuffles or not; not from torch's own generator.
        generator = torch.Generator(torch.get_default_device())
        return Batches(DataLoader(data, batch_size=batch_size, generator=generator), device, None)
    if isinstance(data, Iterable) and not isinstance(data, Tensor | Mapping | str | np.ndarray):
        if iter(data) is data:
            raise InputError(
                f"data is a {type(data).__name__}, which can be gone through only once, and fitting may take several "
                f"passes; pass {_FORMS}."
            )
        return Batches(data, device, _length(data))
    raise InputError(f"data is a {type(data).__name__}; pass {_FORMS}.")


@dataclass(frozen=True)
class TensorBatches:
    """Tensors in memory, cut into batches."""

    x: Inputs
    y: Tensor
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.x, Tensor | tuple | Mapping) or not isinstance(self.y, Tensor):
            found = f"{type(self.x).__name__} and {type(self.y).__name__}"
            raise InputError(f"data=(X, y) hold {found}; they must be tensors or arrays: pass {_FORMS}.")
        check_form(self.x)
        n, targets = count(self.x), len(self.y) if self.y.ndim else 0
        if n != targets:
            raise InputError(f"X holds {n} inputs but y {targets} targets; they must be equally many.")
        if n == 0:
            raise InputError("the data are empty: X and y hold no rows. Pass at least one.")

    def __len__(self) -> int:
        return -(-count(self.x) // self.size)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for start in range(0, count(self.x), self.size):
            yield take(self.x, start, start + self.size), self.y[start : start + self.size]


def split_batch(batch: Any) -> tuple[Inputs, Any]:
    """(x, y) of what a loader yields; a dict with "labels", as tokenised data come in, is both in one."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return (tuple(batch[0]) if isinstance(batch[0], list) else batch[0]), batch[1]
    if isinstance(batch, Mapping) and "labels" in batch:
        return {key: value for key, value in batch.items() if key != "labels"}, batch["labels"]
    raise InputError(
        f"a batch is a {type(batch).__name__}"
        + (f" of length {len(batch)}" if isinstance(batch, tuple | list) else "")
        + "; each must be a pair (x, y), or a dict with the targets under 'labels'. Several inputs go into one "
        "tuple or dict x."
    )


def _is_pair_of_batches(data: tuple[Any, Any]) -> bool:
    dicts = all(isinstance(part, Mapping) and "labels" in part for part in data)
    return dicts or all(isinstance(part, tuple | list) and len(part) == 2 for part in data)


def _as_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value, device="cpu")
    if isinstance(value, tuple | list):
        return tuple(_as_tensors(part) for part in value)
    if isinstance(value, Mapping):
        return {key: _as_tensors(part) for key, part in value.items()}
    return value


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None
