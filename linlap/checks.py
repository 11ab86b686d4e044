"""Checks of arguments that many places share."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from linlap.errors import InputError


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether it is a whole number, of Python or numpy, and no smaller than `least`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def all_finite(t: Tensor) -> bool:
    """Whether no entry is NaN or infinite."""
    # The sum is finite if all entries are, but for overflow; it needs no mask as large as the tensor.
    return bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all())


def check_pairs(things: Any, data: Any, what: str) -> None:
    """A list of things, and a list of as many data."""
    if things and isinstance(data, list | tuple) and len(data) == len(things):
        return
    given = f"{len(data)} data" if isinstance(data, list | tuple) else f"data of type {type(data).__name__}"
    raise InputError(
        f"{len(things)} {what} and {given}; pass at least one, and a list with the data of each in the same order, "
        "such as [(X, y)] * 3 for three of the same data."
    )


def check_seed(seed: Any) -> None:
    if not is_whole(seed, 0):
        raise InputError(f"seed={seed!r}; pass a whole number ≥ 0.")


def check_generator(generator: Any) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator={generator!r}; pass torch.Generator().manual_seed(…), or None.")
