"""Structures of curvature, one a file. To add one: a file here, an export, and a line in the tests' cases."""

from linlap.curvature.base import Curvature, Structure, Sweep, Totals
from linlap.curvature.diagonal import Diagonal, DiagonalCurvature
from linlap.curvature.full import Full, FullCurvature
from linlap.curvature.kron import Kron, KronCurvature, Pair
from linlap.curvature.low_rank import LowRank, LowRankCurvature
from linlap.curvature.rows import as_matrix, diagonal_of_rows, full_of_rows
from linlap.curvature.spectrum import Spectrum

__all__ = [
    "Curvature",
    "Diagonal",
    "DiagonalCurvature",
    "Full",
    "FullCurvature",
    "Kron",
    "KronCurvature",
    "LowRank",
    "LowRankCurvature",
    "Pair",
    "Spectrum",
    "Structure",
    "Sweep",
    "Totals",
    "as_matrix",
    "diagonal_of_rows",
    "full_of_rows",
]
