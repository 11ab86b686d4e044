"""The diagonal of the generalised Gauss-Newton matrix."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from linlap.curvature.base import Curvature, Shapes, Structure, Sweep, Totals, numel
from linlap.curvature.spectrum import Spectrum
from linlap.errors import InputError
from linlap.jacobian import Jacobian
from linlap.linalg import BlockDiagonal
from linlap.linalg import Diagonal as DiagonalOperator
from linlap.prior import Prior


@dataclass(frozen=True, eq=False)
class DiagonalCurvature(Curvature):
    """One number a weight, by parameter, each `[p]`."""

    shapes: Shapes
    totals: Totals
    values: dict[str, Tensor]

    def precision(self, prior: Prior) -> BlockDiagonal:
        device = next(iter(self.values.values())).device
        d = prior.by_parameter(self.shapes, device)
        total = {name: h + d[name] for name, h in self.values.items()}
        # Only what was found by variational inference in the network itself can be below zero.
        for name, precision in total.items():
            if (precision <= 0).any():
                raise InputError(
                    f"under this prior some weights of {name!r} would have no positive precision: the posterior, found "
                    "under a larger prior precision, is wider than this prior. Find it anew under this one."
                )
        return BlockDiagonal({(name,): DiagonalOperator(precision) for name, precision in total.items()})

    def spectra(self, uniform: bool) -> list[Spectrum]:
        return [Spectrum((name,), h, by_weight=True) for name, h in self.values.items()]


@dataclass(frozen=True)
class Diagonal(Structure):
    """Independent weights: cheapest, and blind to what weights do together."""

    def fit(self, sweep: Sweep) -> DiagonalCurvature:
        def measure(jacobian: Jacobian) -> dict[str, Tensor]:
            return {name: block.square_sum().double() for name, block in jacobian.blocks.items()}

        values = sweep.sum(measure, "fitting the diagonal curvature")
        return DiagonalCurvature(sweep.shapes, sweep.totals, values)

    def bytes_needed(self, shapes: Shapes, tables: Collection[str] = ()) -> int:
        return 4 * 8 * numel(shapes)
