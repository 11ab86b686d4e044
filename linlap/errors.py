"""Errors and warnings. Each message says what was given, why it cannot be, and what to pass instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LinlapError(Exception):
    """Base of every error this library raises on purpose."""


class InputError(LinlapError, ValueError):
    """An argument, a model or data that cannot be used as given."""


class NotFiniteError(InputError):
    """NaN or infinity where a number was needed."""


class MemoryBudgetError(LinlapError, MemoryError):
    """Work that would need more memory than there is; raised before it starts."""


class LinlapWarning(UserWarning):
    """Something the user should know but that does not stop the work."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Says in errors which one of several things they are about."""
    try:
        yield
    except LinlapError as error:
        raise type(error)(f"{what}: {error}") from error
