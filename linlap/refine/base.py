"""What a refinement is, and the call that does one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, overload

import torch

from linlap.checks import check_pairs
from linlap.errors import InputError, about
from linlap.posteriors import FunctionPosterior, WeightPosterior

T = TypeVar("T")
Pair = tuple[Any, Any]
Posterior = TypeVar("Posterior", WeightPosterior, FunctionPosterior)


class Method(ABC):
    """A way to do inference in the linear model: from a posterior to one with another mean and covariance."""

    @abstractmethod
    def refine(self, posterior: Any, data: Any, *, progress: bool = True) -> Any:
        """The refined posterior; the one given stays as it is."""

    def refine_all(self, posteriors: Sequence[Any], data: Sequence[Any], *, progress: bool = True) -> list[Any]:
        """Each posterior with its own data."""
        pairs = zip(posteriors, data, strict=True)
        return one_by_one(pairs, lambda pair: self.refine(*pair, progress=progress))


@overload
def refine(posterior: Posterior, data: Any, method: Method, *, progress: bool = True) -> Posterior: ...
@overload
def refine(
    posterior: Sequence[Posterior], data: Sequence[Any], method: Method, *, progress: bool = True
) -> list[Posterior]: ...
def refine(posterior: Any, data: Any, method: Method, *, progress: bool = True) -> Any:
    """Inference in the linear model, which training only nearly did: moves the mean and fits the covariance there.

    `data` are those the posterior was fitted on. A list of posteriors with a list of the data of each gives a list:
    those of one architecture, likelihood and number of data are refined as one batch where their Jacobians fit into
    memory, to what they become one by one.
    """
    if not isinstance(method, Method):
        raise InputError(
            f"method={method!r}; pass an object: ll.GlmMap() or ll.NaturalGradient() for a posterior over weights, "
            "ll.GpMode() for a Gaussian process."
        )
    with torch.inference_mode(False), torch.no_grad():
        if not isinstance(posterior, list | tuple):
            return method.refine(posterior, data, progress=progress)
        check_pairs(posterior, data, "posteriors")
        return method.refine_all(posterior, data, progress=progress)


def one_by_one(pairs: Iterable[Pair], do: Callable[[Pair], T]) -> list[T]:
    """What becomes of each; errors say of which."""
    pairs, found = list(pairs), []
    for place, pair in enumerate(pairs):
        with named(place, len(pairs)):
            found.append(do(pair))
    return found


def named(place: int, many: int) -> AbstractContextManager[None]:
    """Says in errors which of several posteriors they are about."""
    return about(f"posteriors[{place}]") if many > 1 else nullcontext()


def of_weights(posterior: Any, method: Method) -> WeightPosterior:
    """A posterior over weights, which this method needs."""
    if isinstance(posterior, WeightPosterior):
        return posterior
    instead = "ll.GpMode()" if isinstance(posterior, FunctionPosterior) else "what ll.laplace returned"
    raise InputError(
        f"{type(method).__name__} refines a posterior over weights, and this is a {type(posterior).__name__}; "
        f"{'use' if isinstance(posterior, FunctionPosterior) else 'pass'} {instead}."
    )


def check_steps(steps: Any, rate: Any, batch_size: Any, what: str) -> None:
    """A number of steps ≥ 1, a rate in (0, 1], and a batch size ≥ 1; None is the method's own choice."""
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise InputError(f"{what} with steps={steps!r}; pass a positive number of steps, for instance 250.")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1):
        raise InputError(f"{what} with rate={rate!r}; pass a step size in (0, 1], for instance 0.01.")
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise InputError(f"{what} with batch_size={batch_size!r}; pass a whole number ≥ 1, or None.")


def check_checkpoint(checkpoint: Any, many: int) -> None:
    if checkpoint is not None and many > 1:
        raise InputError(
            f"checkpoint={str(checkpoint)!r} for {many} posteriors, and it holds one; refine them one by one."
        )
