"""From a model and data to a posterior over weights, or from many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from torch import nn

from linlap.checks import check_pairs
from linlap.curvature import Structure
from linlap.errors import InputError, about
from linlap.fit.stack import curvatures
from linlap.fit.task import Options, Task
from linlap.likelihoods import Likelihood
from linlap.posteriors import WeightPosterior
from linlap.prior import Prior


@overload
def laplace(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    structure: Structure | None = None,
    prior: Prior | float | None = None,
    *,
    parameters: str | Iterable[str] | None = None,
    seeds: int | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> WeightPosterior: ...
@overload
def laplace(
    model: Sequence[nn.Module],
    data: Sequence[Any],
    likelihood: Likelihood | Sequence[Likelihood],
    structure: Structure | None = None,
    prior: Prior | float | Sequence[Prior | float] | None = None,
    *,
    parameters: str | Iterable[str] | None = None,
    seeds: int | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> list[WeightPosterior]: ...
def laplace(
    model: Any,
    data: Any,
    likelihood: Any,
    structure: Structure | None = None,
    prior: Any = None,
    *,
    parameters: str | Iterable[str] | None = None,
    seeds: int | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> WeightPosterior | list[WeightPosterior]:
    """The Laplace-GGN posterior of a trained model.

    `data` are the training data: (X, y), a Dataset, a DataLoader, or any re-iterable of (x, y). `structure`
    defaults to `Kron()`. `prior` None chooses one precision for all weights by `LeaveOneOut(data)`, with another pass
    over at most 1000 of the data. `parameters` chooses the weights to be uncertain about: None for all that train,
    "last" for the last layer, or names and patterns. `seeds=k` replaces the C exact backward passes of each
    datum by k random ones, unbiased, for many outputs. The model is copied, and left as it is.

    A list of models with a list of the data of each gives a list of posteriors; `likelihood` and `prior` are then one
    for all, or lists too. Networks of one architecture with as many data, as tensors, are fitted as one batch where
    the structure is `Full()` or `Diagonal()`; the posteriors are those they get one by one.
    """
    options = Options.of(structure, parameters, seeds, batch_size, progress)
    if not isinstance(model, list | tuple):
        task = Task.of(model, data, likelihood, prior, options)
        return task.posterior(task.curvature())
    check_pairs(model, data, "models")
    given = zip(
        model, data, _each(likelihood, len(model), "likelihood"), _each(prior, len(model), "prior"), strict=True
    )
    tasks = []
    for index, (one, own, law, belief) in enumerate(given):
        with about(f"models[{index}]"):
            tasks.append(Task.of(one, own, law, belief, options))
    posteriors = []
    for index, (task, curvature) in enumerate(zip(tasks, curvatures(tasks), strict=True)):
        with about(f"models[{index}]"):
            posteriors.append(task.posterior(curvature))
    return posteriors


def _each(value: Any, many: int, name: str) -> list[Any]:
    """One value for each model: a list as it is, anything else for all."""
    if not isinstance(value, list | tuple):
        return [value] * many
    if len(value) != many:
        raise InputError(f"{len(value)} values of {name} for {many} models; pass one for all, or one for each.")
    return list(value)
