"""The whole generalised Gauss-Newton matrix."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from linlap.curvature.base import Curvature, Shapes, Structure, Sweep, Totals, numel
from linlap.curvature.spectrum import Spectrum
from linlap.jacobian import Jacobian, gram_of_columns
from linlap.linalg import SPD, BlockDiagonal, Dense, Spectral, safe_eigh, symmetric
from linlap.prior import Prior


@dataclass(frozen=True, eq=False)
class FullCurvature(Curvature):
    """H `[P, P]`."""

    shapes: Shapes
    totals: Totals
    matrix: Tensor

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        return safe_eigh(self.matrix, "curvature")

    @cached_property
    def _values(self) -> Tensor:
        """Eigenvalues: those known, or else without the vectors, for a sixth of the time."""
        if "_eigen" in vars(self):
            return self._eigen[0]
        return torch.linalg.eigvalsh(symmetric(self.matrix)).clamp_min(0)

    def precision(self, prior: Prior) -> BlockDiagonal:
        by_parameter = prior.by_parameter(self.shapes, self.matrix.device)
        names = tuple(self.shapes)
        if prior.is_uniform:
            values, vectors = self._eigen
            operator: SPD = Spectral(vectors, values + by_parameter[names[0]])
        else:
            # No decomposition of H alone serves H + diag(d): one Cholesky for each such prior.
            d = torch.cat([by_parameter[name].expand(shape.numel()) for name, shape in self.shapes.items()])
            operator = Dense.of(self.matrix + d.diag())
        return BlockDiagonal({names: operator})

    def spectra(self, uniform: bool) -> Sequence[Spectrum]:
        return [Spectrum(tuple(self.shapes), self._values)] if uniform else []

    def scaled(self, factor: Tensor) -> FullCurvature:
        changed = replace(self, matrix=self.matrix * factor)
        if "_eigen" in vars(self):
            values, vectors = self._eigen
            vars(changed)["_eigen"] = (values * factor, vectors)
        return changed


@dataclass(frozen=True)
class Full(Structure):
    """Every covariance between weights: exact, for networks of up to some thousands of them."""

    def fit(self, sweep: Sweep) -> FullCurvature:
        def measure(jacobian: Jacobian) -> Tensor:
            return gram_of_columns(jacobian.dense().flatten(0, 1)).double()

        matrix = sweep.sum(measure, "fitting the full curvature")
        return FullCurvature(sweep.shapes, sweep.totals, matrix)

    def bytes_needed(self, shapes: Shapes, tables: Collection[str] = ()) -> int:
        # The matrix, its eigenvectors, and the workspace of the decomposition, in float64.
        return 5 * 8 * numel(shapes) ** 2

    @property
    def forms_dense_rows(self) -> bool:
        return True
