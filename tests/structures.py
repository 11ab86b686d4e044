"""What a case of a structure is: an object of the library, and the oracle's word on the precision it is to lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linlap.curvature import Structure
from tests import reference
from tests.networks.truth import Truth
from tests.reference import Precision

Oracle = Callable[[Truth, Precision], Tensor]


@dataclass(frozen=True)
class StructureCase:
    """`precision` is H + P0 `[P, P]` as the structure has it, for networks of Linear layers."""

    name: str
    structure: Structure
    precision: Oracle
    adds: bool = True
    per_weight: bool = True
    """Whether `precision` knows priors that differ within a layer."""


def by_full(truth: Truth, prior: Precision) -> Tensor:
    return reference.posterior_precision(truth.H, truth.prior(prior))


def by_diagonal(truth: Truth, prior: Precision) -> Tensor:
    return reference.posterior_precision(reference.diagonal_ggn(truth.J, truth.lam), truth.prior(prior))


def by_kron(**options: Any) -> Oracle:
    def precision(truth: Truth, prior: Precision) -> Tensor:
        return reference.kron_precision(truth.model(), truth.x, truth.names, truth.lam, prior, **options)

    return precision


def by_leading(rank: int) -> Oracle:
    """The strongest directions of H, whatever the prior, and the prior elsewhere."""

    def precision(truth: Truth, prior: Precision) -> Tensor:
        values, vectors = torch.linalg.eigh(truth.H)
        values[:-rank] = 0
        return reference.posterior_precision((vectors * values) @ vectors.T, truth.prior(prior))

    return precision
