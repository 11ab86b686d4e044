"""A curvature under another noise: multiplied, its decompositions kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

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
from linlap.linalg import safe_eigh


@singledispatch
def scaled(curvature: Curvature, factor: Tensor) -> Curvature:
    """factor · H, differentiable in the factor. Register a rule for a structure of one's own."""
    raise InputError(
        f"the noise of a {type(curvature).__name__} cannot be changed without the data; pass noise=None, or register "
        "linlap.evidence.scaled for it."
    )


@scaled.register
def _(curvature: FullCurvature, factor: Tensor) -> FullCurvature:
    changed = replace(curvature, matrix=curvature.matrix * factor)
    known = vars(curvature).get("_eigen")
    if known is not None:
        vars(changed)["_eigen"] = (known[0] * factor, known[1])
    return changed


@scaled.register
def _(curvature: DiagonalCurvature, factor: Tensor) -> DiagonalCurvature:
    return replace(curvature, values={name: v * factor for name, v in curvature.values.items()})


@scaled.register
def _(curvature: LowRankCurvature, factor: Tensor) -> LowRankCurvature:
    changed = replace(curvature, root=curvature.root * factor.sqrt())
    known = vars(curvature).get("_eigen")
    if known is not None:
        vars(changed)["_eigen"] = (known[0] * factor, known[1])
    return changed


@scaled.register
def _(curvature: KronCurvature, factor: Tensor) -> KronCurvature:
    changed = replace(
        curvature,
        pairs={name: _pair(pair, factor) for name, pair in curvature.pairs.items()},
        squares={name: square * factor for name, square in curvature.squares.items()},
        diagonals={name: v * factor for name, v in curvature.diagonals.items()},
        corrected={name: v * factor for name, v in curvature.corrected.items()},
    )
    known = vars(curvature).get("_square_eigen")
    if known is not None:
        vars(changed)["_square_eigen"] = {name: (v * factor, u) for name, (v, u) in known.items()}
    return changed


def _pair(pair: Pair, factor: Tensor) -> Pair:
    """The noise is in G alone."""
    changed = replace(pair, g=pair.g * factor)
    known = vars(pair).get("eigen")
    if known is not None:
        a_values, a_vectors, g_values, g_vectors = known
        vars(changed)["eigen"] = (a_values, a_vectors, g_values * factor, g_vectors)
    return changed


def combined(whole: Curvature, parts: Sequence[Curvature], factors: Tensor) -> Curvature:
    """Σ factor · H over the parts of one curvature that belong to its outputs."""
    total = scaled(parts[0], factors[0])
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        total = total + scaled(part, factor)
    known: Any = total
    if isinstance(whole, KronCurvature) and isinstance(total, KronCurvature):
        # A is the same for all outputs.
        known = replace(total, pairs={name: _with_g(pair, total.pairs[name].g) for name, pair in whole.pairs.items()})
    changed: Curvature = replace(known, totals=whole.totals)
    return changed


def _with_g(pair: Pair, g: Tensor) -> Pair:
    changed = replace(pair, g=g)
    a_values, a_vectors, _, _ = pair.eigen
    vars(changed)["eigen"] = (a_values, a_vectors, *safe_eigh(g, "Kronecker factor G"))
    return changed
