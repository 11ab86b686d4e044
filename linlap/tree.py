"""Sums of nested values: frozen dataclasses and dicts with tensors and numbers at the leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from torch import Tensor

T = TypeVar("T")


def zip_map(change: Callable[[Any, Any], Any], one: T, other: T) -> T:
    """`change` on every pair of tensor or number leaves; everything else is taken from the first."""
    return cast(T, _zip_map(change, one, other))


def _zip_map(change: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    if isinstance(first, Tensor) or (isinstance(first, int | float) and not isinstance(first, bool)):
        return change(first, second)
    if isinstance(first, dict):
        return {key: _zip_map(change, first[key], second[key]) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        changes = {f.name: _zip_map(change, getattr(first, f.name), getattr(second, f.name)) for f in fields(first)}
        return replace(first, **changes)
    return first


def add(one: T, other: T) -> T:
    """The sum as a new value."""
    return zip_map(lambda a, b: a + b, one, other)


def add_into(total: T, part: T) -> T:
    """The sum, using up the tensors of `total`: for totals nobody else holds."""

    def change(a: Any, b: Any) -> Any:
        return a.add_(b) if isinstance(a, Tensor) else a + b

    return zip_map(change, total, part)


def alike(one: Any, other: Any) -> bool:
    """Whether two values have the same keys all the way down, so that they can be added."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if is_dataclass(one):
        return all(alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return True


def map_tensors(change: Callable[[Tensor], Tensor], value: T) -> T:
    """`change` on every tensor leaf."""
    return zip_map(lambda a, _: change(a) if isinstance(a, Tensor) else a, value, value)
