"""What a curvature and the structure that fits it are."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from linlap import tree
from linlap.curvature.spectrum import Spectrum
from linlap.errors import InputError
from linlap.jacobian import Jacobian
from linlap.linalg import BlockDiagonal
from linlap.prior import Prior

T = TypeVar("T")
Shapes = Mapping[str, torch.Size]


@dataclass(frozen=True)
class Totals:
    """What else is summed over the data: their number, and log p(y | f(x; θ*))."""

    count: int
    log_likelihood: float


class Sweep(Protocol):
    """Passes over the data, as a structure sees them."""

    @property
    def shapes(self) -> Shapes: ...

    @property
    def like(self) -> Tensor:
        """A tensor of the network's dtype and device."""

    @property
    def totals(self) -> Totals:
        """Known once all data have been seen."""

    def sum(self, measure: Callable[[Jacobian], T], goal: str) -> T:
        """Σ over batches of a measurement of the Jacobian, its seeds the columns of Λ^½."""

    def product(self, v: Tensor, goal: str) -> Tensor:
        """The GGN times a weight vector: Σ Jᵀ Λ J v, in one pass."""


class Curvature(ABC):
    """Σ over data of Jᵀ Λ J, exactly or nearly; there is no prior in it."""

    shapes: Shapes
    totals: Totals

    @abstractmethod
    def precision(self, prior: Prior) -> BlockDiagonal:
        """H + P0 in float64; decompositions of H are made once, whatever the number of priors."""

    def __add__(self, other: Curvature) -> Curvature:
        """The curvature of both sets of data together."""
        if type(self) is not type(other) or list(self.shapes.items()) != list(other.shapes.items()):
            raise InputError(
                f"cannot add a {type(other).__name__} to a {type(self).__name__}, or over other parameters; fit both "
                "with the same structure on the same network."
            )
        return self._plus(other)

    def _plus(self, other: Curvature) -> Curvature:
        return tree.add(self, other)

    def with_totals(self, totals: Totals) -> Curvature:
        """The same with its decompositions, counted elsewhere: at another mean, under another noise."""
        changed: Any = copy.copy(self)
        vars(changed)["totals"] = totals
        found: Curvature = changed
        return found

    def spectra(self, uniform: bool) -> Sequence[Spectrum]:
        """log det (H + P0) in parts, by eigenvalues: for priors of one number, if `uniform`, or else for those of one a
        parameter, each spectrum then of one parameter. None where only `precision` knows."""
        return ()

    def scaled(self, factor: Tensor) -> Curvature:
        """factor · H with its decompositions, differentiable in the factor."""
        return tree.map_tensors(lambda tensor: tensor * factor, self)

    def reweighted(self, parts: Sequence[Curvature], factors: Tensor) -> Curvature:
        """Σ factor · part over parts that this curvature is the sum of, one an output; counted as it is."""
        total = parts[0].scaled(factors[0])
        for part, factor in zip(parts[1:], factors[1:], strict=True):
            total = total + part.scaled(factor)
        return total.with_totals(self.totals)

    def blended(self, other: Curvature, rate: float, share: float) -> Curvature:
        """(1 − rate) of this curvature and rate · share of another, measured on a part of the data; these totals."""
        return blend(self, other, rate, share)


def blend(one: T, other: T, rate: float, share: float) -> T:
    """(1 − rate) of every tensor and rate · share of the other's; numbers are the first one's."""

    def change(a: Tensor | float, b: Tensor | float) -> Tensor | float:
        return torch.lerp(a, share * b, rate) if isinstance(a, Tensor) and isinstance(b, Tensor) else a

    return tree.zip_map(change, one, other)


class Structure(ABC):
    """A choice of what to keep of the curvature."""

    @abstractmethod
    def fit(self, sweep: Sweep) -> Curvature:
        """The curvature of the data of a sweep."""

    def fit_part(self, sweep: Sweep, known: Curvature) -> Curvature:
        """As `fit`, of a part of the data, to be averaged with a known curvature: what `blended` ignores may stay."""
        return self.fit(sweep)

    @abstractmethod
    def bytes_needed(self, shapes: Shapes, tables: Collection[str] = ()) -> int:
        """The memory that fitting, decomposing and predicting take at their peak, besides the network's own.

        `tables` are the parameters whose rows are looked up, as those of embeddings.
        """

    @property
    def directions(self) -> int:
        """How many directions in weight space a prediction multiplies the Jacobian with, in float64."""
        return 0

    @property
    def forms_dense_rows(self) -> bool:
        """Whether a batch's whole Jacobian is formed, so that batches must be small enough for it."""
        return False


def numel(shapes: Shapes) -> int:
    return sum(shape.numel() for shape in shapes.values())
