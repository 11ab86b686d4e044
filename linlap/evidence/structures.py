"""The log determinant of each structure's precision, in its cheapest form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch

import torch
from torch import Tensor

from linlap.curvature import (
    Curvature,
    DiagonalCurvature,
    FullCurvature,
    KronCurvature,
    LowRankCurvature,
    Pair,
)
from linlap.errors import InputError
from linlap.evidence.determinants import AutomaticLogDet, DenseLogDet, LogDet, Terms
from linlap.evidence.groups import Groups
from linlap.evidence.scaling import combined, scaled
from linlap.linalg import safe_cholesky, symmetric

Noisy = Sequence[Curvature]
"""What the noise multiplies: nothing, the whole curvature, or each output's part of it."""


@singledispatch
def log_det(curvature: Curvature, groups: Groups, noisy: Noisy) -> LogDet:
    """How log det of the precision changes with priors and noise, for a curvature whose noise is to change in the
    parts `noisy`, or not at all."""
    return AutomaticLogDet(_of_precision(curvature, groups, noisy))


def _of_precision(curvature: Curvature, groups: Groups, noisy: Noisy) -> Callable[[Tensor, Tensor], Tensor]:
    """Any structure. What it decomposes it does now, outside of what is differentiated."""
    with torch.no_grad():
        curvature.precision(groups.precisions(torch.ones(groups.count, dtype=torch.float64, device=groups.device)))

    def function(d: Tensor, factors: Tensor) -> Tensor:
        return _under(curvature, noisy, factors).precision(groups.precisions(d)).logdet()

    return function


def _under(curvature: Curvature, noisy: Noisy, factors: Tensor) -> Curvature:
    if not noisy:
        return curvature
    return scaled(curvature, factors[0]) if len(noisy) == 1 else combined(curvature, noisy, factors)


@log_det.register
def _(curvature: DiagonalCurvature, groups: Groups, noisy: Noisy) -> LogDet:
    def flat(one: Curvature) -> Tensor:
        if not isinstance(one, DiagonalCurvature):
            raise TypeError("parts of another structure")
        return torch.cat(list(one.values.values()))

    terms = Terms.of(groups.count, flat(curvature), groups.index)
    if not noisy:
        return terms
    moving = torch.stack([flat(one) for one in noisy], dim=1)
    return Terms(terms.k, terms.times, torch.zeros_like(terms.fixed), moving, terms.group, terms.power)


@log_det.register
def _(curvature: FullCurvature, groups: Groups, noisy: Noisy) -> LogDet:
    if groups.over != "scalar" or len(noisy) > 1:
        moving = [one.matrix for one in noisy if isinstance(one, FullCurvature)]
        return DenseLogDet(groups, None if moving else curvature.matrix, moving)
    terms = Terms.of(1, _eigenvalues(curvature), groups.index[:1])
    return terms.noisy() if noisy else terms


def _eigenvalues(curvature: FullCurvature) -> Tensor:
    """Those that are known; else without the eigenvectors, for a sixth of the time."""
    known = vars(curvature).get("_eigen")
    if known is not None:
        return known[0]
    return torch.linalg.eigvalsh(symmetric(curvature.matrix.double())).clamp_min(0)


@log_det.register
def _(curvature: LowRankCurvature, groups: Groups, noisy: Noisy) -> LogDet:
    if groups.over != "scalar":
        return AutomaticLogDet(_of_root(curvature.root, groups))
    strong = torch.linalg.eigvalsh(curvature.root.mT @ curvature.root).clamp_min(0)
    one = groups.index[:1]
    weak = Terms.of(1, strong.new_zeros(1), one, times=float(len(groups.index) - len(strong)))
    terms = Terms.joined([Terms.of(1, strong, one), weak])
    return terms.noisy() if noisy else terms


def _of_root(root: Tensor, groups: Groups) -> Callable[[Tensor, Tensor], Tensor]:
    """log det (D + β R Rᵀ) = log det D + log det (I + β Rᵀ D⁻¹ R)."""

    def function(d: Tensor, factors: Tensor) -> Tensor:
        each = d[groups.index]
        small = root.mT @ (root / each.unsqueeze(1)) * factors.prod()
        factor = safe_cholesky(small + torch.eye(len(small), dtype=small.dtype, device=small.device))
        return each.log().sum() + 2.0 * factor.diagonal().log().sum()

    return function


@log_det.register
def _(curvature: KronCurvature, groups: Groups, noisy: Noisy) -> LogDet:
    if len(noisy) > 1 and groups.over == "weight":
        raise InputError(
            "over='weight' with noise='output' under Kron: the eigenvectors that the prior is projected on turn with "
            "the noise; pass over='layer', or fit with ll.Full() or ll.Diagonal()."
        )
    if len(noisy) > 1 or groups.over == "weight":
        return AutomaticLogDet(_of_precision(curvature, groups, noisy))
    with torch.no_grad():
        parts = [part for name in curvature.shapes for part in _terms_of(name, curvature, groups, bool(noisy))]
    return Terms.joined(parts)


def _terms_of(name: str, curvature: KronCurvature, groups: Groups, noisy: bool) -> list[Terms]:
    k, group = groups.count, groups.by_parameter[name].reshape(1)
    owners = {bias: weight for weight, bias in curvature.shared.items()}
    if name in owners:
        values = curvature.pairs[owners[name]].eigen[2]
    elif name in curvature.diagonals:
        values = curvature.diagonals[name]
    elif name in curvature.squares:
        values = curvature._square_eigen[name][0]
    elif name in curvature.corrected:
        values = curvature.corrected[name]
    elif curvature.damping == "sqrt":
        return _damped(curvature.pairs[name], k, group, noisy)
    else:
        values = curvature.pairs[name].values()
    terms = Terms.of(k, values.flatten(), group)
    return [terms.noisy() if noisy else terms]


def _damped(pair: Pair, k: int, group: Tensor, noisy: bool) -> list[Terms]:
    """log (β g + √δ)(a + √δ): the noise is in G alone."""
    a_values, _, g_values, _ = pair.eigen
    of_g = Terms.of(k, g_values.flatten(), group, a_values.shape[-1], 0.5)
    of_a = Terms.of(k, a_values.expand(len(g_values), -1).flatten(), group, g_values.shape[-1], 0.5)
    return [of_g.noisy(), of_a.steady(1)] if noisy else [of_g, of_a]
