"""Choosing the prior of a posterior: `posterior ─► posterior′`."""

from __future__ import annotations

from typing import Any

from linlap.choice import AnyPosterior, PriorChoice
from linlap.errors import InputError
from linlap.posteriors import FunctionPosterior, WeightPosterior


def select_prior(posterior: AnyPosterior, method: PriorChoice) -> AnyPosterior:
    """The same posterior under the prior that `method` chooses: `ll.Evidence()`, `ll.Validation(data)`.

    Curvature and kernels are reused; the posterior passed in is left as it is.
    """
    _check(posterior, method)
    return method.select(posterior)


def _check(posterior: Any, method: Any) -> None:
    if not isinstance(posterior, WeightPosterior | FunctionPosterior):
        raise InputError(
            f"a {type(posterior).__name__} has no prior to choose; pass what ll.laplace or ll.gaussian_process gave."
        )
    if not isinstance(method, PriorChoice):
        given = f"the class {method.__name__}" if isinstance(method, type) else f"{method!r}"
        raise InputError(f"method is {given}; pass an object such as ll.Evidence() or ll.Validation(data).")
