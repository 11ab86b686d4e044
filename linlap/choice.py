"""What a way of choosing the prior is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from linlap.posteriors import FunctionPosterior, WeightPosterior

AnyPosterior = TypeVar("AnyPosterior", WeightPosterior, FunctionPosterior)


class PriorChoice(ABC):
    """A way of choosing the prior of a posterior: an object such as `Evidence()`."""

    @abstractmethod
    def select(self, posterior: AnyPosterior) -> AnyPosterior:
        """The same posterior with the prior chosen, and whatever else was asked for."""
