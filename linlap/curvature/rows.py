"""Curvatures of data whose Jacobians are there already, times roots of Λ: sums of the squares of rows `[m, P]`."""

from __future__ import annotations

from torch import Tensor

from linlap.curvature.base import Curvature, Shapes, Totals
from linlap.curvature.diagonal import DiagonalCurvature
from linlap.curvature.full import FullCurvature
from linlap.curvature.low_rank import LowRankCurvature
from linlap.jacobian import gram_of_columns


def full_of_rows(shapes: Shapes, totals: Totals, rows: Tensor) -> Curvature:
    """The whole; few rows are kept as they are, which spares decompositions of P × P matrices."""
    if 2 * len(rows) <= rows.shape[1]:
        return LowRankCurvature(shapes, totals, rows.double().mT)
    return FullCurvature(shapes, totals, gram_of_columns(rows).double())


def as_matrix(curvature: Curvature) -> Curvature:
    """Kept rows multiplied out, for what needs the matrix."""
    if not isinstance(curvature, LowRankCurvature):
        return curvature
    return FullCurvature(curvature.shapes, curvature.totals, curvature.root @ curvature.root.mT)


def diagonal_of_rows(shapes: Shapes, totals: Totals, rows: Tensor) -> Curvature:
    """The diagonal."""
    pieces = rows.double().square().sum(0).split([shape.numel() for shape in shapes.values()])
    return DiagonalCurvature(shapes, totals, dict(zip(shapes, pieces, strict=True)))
