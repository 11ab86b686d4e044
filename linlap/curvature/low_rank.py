"""The leading eigenpairs of the generalised Gauss-Newton matrix, found without ever forming it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from linlap.checks import is_whole
from linlap.curvature.base import Curvature, Shapes, Structure, Sweep, Totals, numel
from linlap.curvature.spectrum import Spectrum
from linlap.errors import InputError
from linlap.linalg import BlockDiagonal, lanczos, safe_cholesky, safe_eigh
from linlap.linalg import LowRank as LowRankOperator
from linlap.prior import Prior


@dataclass(frozen=True, eq=False)
class LowRankCurvature(Curvature):
    """H ≈ R Rᵀ with `root` `[P, k]`."""

    shapes: Shapes
    totals: Totals
    root: Tensor

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        return _eigenpairs(self.root)

    def precision(self, prior: Prior) -> BlockDiagonal:
        by_parameter = prior.by_parameter(self.shapes, self.root.device)
        scale = torch.cat([by_parameter[name].expand(shape.numel()) for name, shape in self.shapes.items()])
        if prior.is_uniform:
            values, vectors = self._eigen
            operator = LowRankOperator(vectors, values / scale[0], scale)
        else:
            fixed = scale.detach()
            values, vectors = _eigenpairs(self.root * fixed.rsqrt().unsqueeze(-1))
            operator = LowRankOperator(vectors, values, fixed, self._logdet(scale) if scale.requires_grad else None)
        return BlockDiagonal({tuple(self.shapes): operator})

    def spectra(self, uniform: bool) -> Sequence[Spectrum]:
        if not uniform:
            return []
        names, values = tuple(self.shapes), self._eigen[0]
        return [Spectrum(names, values), Spectrum(names, values.new_zeros(1), times=numel(self.shapes) - len(values))]

    def scaled(self, factor: Tensor) -> LowRankCurvature:
        changed = replace(self, root=self.root * factor.sqrt())
        if "_eigen" in vars(self):
            values, vectors = self._eigen
            vars(changed)["_eigen"] = (values * factor, vectors)
        return changed

    def _logdet(self, scale: Tensor) -> Tensor:
        """log det (D + R Rᵀ), without the eigenvectors: those of equal eigenvalues have no derivative."""
        small = self.root.mT @ (self.root / scale.unsqueeze(-1))
        factor = safe_cholesky(small + torch.eye(len(small), dtype=small.dtype, device=small.device))
        return scale.log().sum() + 2.0 * factor.diagonal().log().sum()

    def _plus(self, other: Curvature) -> LowRankCurvature:
        if not isinstance(other, LowRankCurvature):
            raise TypeError("checked by the caller")
        totals = Totals(
            self.totals.count + other.totals.count, self.totals.log_likelihood + other.totals.log_likelihood
        )
        return LowRankCurvature(self.shapes, totals, torch.cat([self.root, other.root], dim=1))

    def blended(self, other: Curvature, rate: float, share: float) -> Curvature:
        raise InputError("low-rank curvatures have no average of the same rank; use ll.Kron(), Diagonal() or Full().")


def _eigenpairs(root: Tensor) -> tuple[Tensor, Tensor]:
    """Non-zero eigenvalues and orthonormal eigenvectors of R Rᵀ, from the small matrix Rᵀ R."""
    values, small = safe_eigh(root.mT @ root, "low-rank curvature")
    kept = values > values.max() * root.shape[1] * torch.finfo(values.dtype).eps
    values = values[kept]
    vectors = root @ (small[:, kept] * values.rsqrt())
    # Directions of small eigenvalues lose orthogonality to rounding in Rᵀ R; one QR and a second small
    # decomposition restore it.
    basis, upper = torch.linalg.qr(vectors * values.sqrt())
    values, rotation = safe_eigh(upper @ upper.mT, "low-rank curvature")
    return values, basis @ rotation


@dataclass(frozen=True)
class LowRank(Structure):
    """The `rank` strongest directions; elsewhere the prior. `steps` Lanczos steps, one pass over the data each.

    A sum of curvatures keeps the directions of each: it is that of all data as far as neither has left anything out.
    """

    rank: int
    steps: int | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.rank):
            raise InputError(f"rank={self.rank!r}; pass a positive number of directions to keep, for instance 20.")
        if self.steps is not None and not is_whole(self.steps):
            raise InputError(f"steps={self.steps!r}; pass a whole number of Lanczos steps, or None.")
        if self.steps is not None and self.steps < self.rank:
            raise InputError(f"steps={self.steps} is less than rank={self.rank}; take at least as many, or None.")

    def fit(self, sweep: Sweep) -> LowRankCurvature:
        size, like = numel(sweep.shapes), sweep.like
        # Ritz values of as many steps as directions are still moving at the small end; half as many more settle them.
        steps = min(size, self.steps or self.rank + self.rank // 2 + 8)
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu").to(like.device)
        goal = f"low-rank curvature, {steps} passes"
        values, vectors = lanczos(lambda v: sweep.product(v.to(like.dtype), goal).double(), start, steps)
        kept = min(self.rank, len(values))
        return LowRankCurvature(sweep.shapes, sweep.totals, vectors[:, :kept] * values[:kept].sqrt())

    @property
    def directions(self) -> int:
        return self.rank

    def bytes_needed(self, shapes: Shapes, tables: Collection[str] = ()) -> int:
        steps = min(numel(shapes), self.steps or self.rank + self.rank // 2 + 8)
        return 4 * 8 * numel(shapes) * steps
