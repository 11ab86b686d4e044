"""The one interface every measured library stands behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from torch import Tensor, nn

Structure = Literal["Kron", "Diagonal"]
STRUCTURES: tuple[Structure, ...] = ("Kron", "Diagonal")
PRIOR_PRECISION = 1.0


class Library(ABC):
    """Fits a Laplace posterior for a softmax classifier and gives the latent covariance of new inputs.

    The quantity every member must return is the same: the generalised Gauss-Newton matrix of the summed
    cross entropy, Kronecker factored (weight sharing 'expand') or its diagonal, plus the identity as prior.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """How tables and files call it."""

    @abstractmethod
    def fit(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        """A posterior ready to predict: decompositions done. The model may be taken over and changed."""

    @abstractmethod
    def curvature(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        """Only the sums over the data that a fit starts with: nothing decomposed, no prior."""

    @abstractmethod
    def latent_covariance(self, posterior: Any, x: Tensor) -> Tensor:
        """The covariance [n, C, C] of the linearised network's outputs at x [n, ...]."""

    def refuses(self, structure: Structure, weights: int, n: int, classes: int) -> str | None:
        """Why a fit of n inputs must not be tried, such as the memory it would take; None to go ahead."""
        return None
