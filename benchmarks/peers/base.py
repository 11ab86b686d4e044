"""The one interface every measured library stands behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from torch import Tensor, nn

Structure = Literal["Kron", "Diagonal"]
STRUCTURES: tuple[Structure, ...] = ("Kron", "Diagonal")
Outputs = Literal["independent", "coupled"]  # of a Gaussian process, which takes the place of a structure
OUTPUTS: tuple[Outputs, ...] = ("independent", "coupled")
Kind = Structure | Outputs
PRIOR_PRECISION = 1.0


class Library(ABC):
    """Fits a Laplace posterior for a softmax classifier and gives the latent covariance of new inputs.

    The quantity every member must return is the same: the generalised Gauss-Newton matrix of the summed
    cross entropy, Kronecker factored (weight sharing 'expand') or its diagonal, plus the identity as prior.
    Of Gaussian processes: with coupled outputs that of the whole matrix; with independent ones each output by
    itself, with the kernel of its own gradients and p (1 - p) for its curvature.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """How tables and files call it."""

    @abstractmethod
    def fit(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        """A posterior ready to predict: decompositions done. The model may be taken over and changed."""

    @abstractmethod
    def gp_fit(self, model: nn.Module, data: tuple[Tensor, Tensor], coupled: bool) -> Any:
        """A Gaussian process conditioned at all data, ready to predict. The model may be taken over and changed."""

    def posterior(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Kind) -> Any:
        """A posterior in weight space or, where outputs are named for a structure, in function space."""
        if structure in OUTPUTS:
            return self.gp_fit(model, data, coupled=structure == "coupled")
        return self.fit(model, data, structure)

    @abstractmethod
    def curvature(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        """Only the sums over the data that a fit starts with: nothing decomposed, no prior."""

    @abstractmethod
    def latent_covariance(self, posterior: Any, x: Tensor) -> Tensor:
        """The covariance [n, C, C] of the linearised network's outputs at x [n, ...], by either kind of posterior."""

    def refuses(self, structure: Kind, weights: int, n: int, classes: int) -> str | None:
        """Why a fit of n inputs, or a Gaussian process's answer for n, must not be tried, such as the memory it
        would take; None to go ahead."""
        return None
