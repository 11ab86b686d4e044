"""Eigenvalues of a curvature, where they give the determinant of its precision under many priors at once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A part of log det (H + P0): times · Σ log(λ + δ^power) over `values` λ, where the parameters `names` share one δ.

    `by_weight` says that there is one λ a weight, in order, so that δ may also differ between weights; `fixed` that
    these λ stay where H is multiplied, because others take the factor.
    """

    names: tuple[str, ...]
    values: Tensor
    times: int = 1
    power: float = 1.0
    by_weight: bool = False
    fixed: bool = False
