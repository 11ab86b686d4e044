"""Which inputs a Gaussian process is conditioned at. To add a choice: a class here, and an export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linlap.checks import check_seed, is_whole
from linlap.errors import InputError
from linlap.likelihoods import Likelihood
from linlap.network.inputs import check_form, check_numbers, count
from linlap.types import Inputs

Scores = Callable[[Likelihood, Tensor], Tensor]


class Inducing(ABC):
    """A choice of inputs: of all data those with the largest scores, as many as are wanted."""

    @property
    @abstractmethod
    def wanted(self) -> int | None:
        """How many; None for all."""

    @abstractmethod
    def scores(self) -> Scores:
        """For one pass over the data: scores `[n]` of a batch by its outputs f `[n, C]`."""


@dataclass(frozen=True)
class Everything(Inducing):
    """All data: exact. Time grows with the cube of their number, memory with its square."""

    @property
    def wanted(self) -> int | None:
        return None

    def scores(self) -> Scores:
        return lambda likelihood, f: torch.zeros(len(f), dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Subset(Inducing):
    """`size` data at random, and none of the others; the prior precision is multiplied by N / size to make up."""

    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check_size(self)
        check_seed(self.seed)

    @property
    def wanted(self) -> int | None:
        return self.size

    def scores(self) -> Scores:
        return _at_random(self.seed)


@dataclass(frozen=True)
class TopM(Inducing):
    """The `size` data with the largest tr Λ, of which the network is least sure; otherwise as `Subset`."""

    size: int

    def __post_init__(self) -> None:
        _check_size(self)

    @property
    def wanted(self) -> int | None:
        return self.size

    def scores(self) -> Scores:
        return lambda likelihood, f: likelihood.hessian_sqrt(f).double().square().sum((1, 2)).cpu()


@dataclass(frozen=True, eq=False, repr=False)
class Sparse(Inducing):
    """All data, projected on `size` inputs drawn from them at random, or on `inputs` of your own."""

    size: int | None = None
    seed: int = 0
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.inputs is None):
            raise InputError("Sparse needs a number of inducing inputs, as Sparse(512), or inputs: Sparse(inputs=Z).")
        check_seed(self.seed)
        if self.inputs is None:
            _check_size(self)
        else:
            check_form(self.inputs)
            check_numbers(self.inputs)

    def __repr__(self) -> str:
        own = f"inputs=<{count(self.inputs)} of your own>" if self.inputs is not None else None
        return f"Sparse({own or f'size={self.size}, seed={self.seed}'})"

    @property
    def wanted(self) -> int | None:
        return self.size

    def scores(self) -> Scores:
        return _at_random(self.seed)


CHOICES: tuple[type[Inducing], ...] = (Everything, Subset, TopM, Sparse)


def _at_random(seed: int) -> Scores:
    generator = np.random.default_rng(seed)  # its numbers do not depend on how many are asked for at a time
    return lambda likelihood, f: torch.from_numpy(generator.random(len(f)))


def _check_size(choice: Any) -> None:
    if not is_whole(choice.size):
        raise InputError(
            f"{type(choice).__name__}({choice.size!r}); pass a positive number of inputs, for instance 200."
        )
