"""What data tell a Gaussian process: corrections of its covariances, and of functions drawn from its prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.linalg import safe_cholesky
from linlap.linalg.large import LARGE, cholesky_in_place
from linlap.posteriors.points import SHARE


class Conditioning(ABC):
    """Under one prior, with features F of m points and kernels k = F P0⁻¹ Jᵀ `[G, m, columns]`.

    The posterior covariance is K + Σ ± VᵀV over `corrections(k)`; a draw w from the prior becomes one from the
    posterior as w + P0⁻¹ Fᵀ b with b = coefficients(F w, noise).
    """

    @abstractmethod
    def corrections(self, k: Tensor) -> list[tuple[int, Tensor]]:
        """Signs, and V `[G, m, columns]`."""

    @abstractmethod
    def coefficients(self, values: Tensor, noise: Tensor) -> Tensor:
        """b for values F w and standard normal noise, all `[G, m, draws]`."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log det (H + P0) − log det P0."""


@dataclass(frozen=True, eq=False)
class Exact(Conditioning):
    """The data at the points themselves: F = Sᵀ J with S Sᵀ = Λ, which may be singular, and I + F P0⁻¹ Fᵀ = L Lᵀ."""

    factor: Tensor
    log_det: Tensor

    @classmethod
    def of(cls, gram: Tensor, dtype: torch.dtype, progress: bool = True) -> Exact:
        """From F P0⁻¹ Fᵀ in float64, which is used up."""
        factor = cholesky(plus_identity(gram), "kernel of the data", progress)
        # Row by row, which triangular solves take in a quarter less time than LAPACK's order.
        return cls(factor.to(dtype, memory_format=torch.contiguous_format), log_det(factor))

    def corrections(self, k: Tensor) -> list[tuple[int, Tensor]]:
        return [(-1, torch.linalg.solve_triangular(self.factor, k, upper=False))]

    def coefficients(self, values: Tensor, noise: Tensor) -> Tensor:
        return -torch.cholesky_solve(values + noise, self.factor)

    def logdet(self) -> Tensor:
        return self.log_det


@dataclass(frozen=True, eq=False)
class Projected(Conditioning):
    """Data anywhere, seen through the points: F = J there, K = F P0⁻¹ Fᵀ = R Rᵀ, and I + R⁻¹ (Σ k Λ kᵀ) R⁻ᵀ = L Lᵀ."""

    root: Tensor
    factor: Tensor
    log_det: Tensor

    @classmethod
    def of(cls, root: Tensor, seen: Tensor, dtype: torch.dtype, progress: bool = True) -> Projected:
        """From R and R⁻¹ (Σ k Λ kᵀ) R⁻ᵀ in float64, which is used up."""
        factor = cholesky(plus_identity(seen), "kernel of the data", progress)
        return cls(root.to(dtype), factor.to(dtype), log_det(factor))

    def corrections(self, k: Tensor) -> list[tuple[int, Tensor]]:
        prior = torch.linalg.solve_triangular(self.root, k, upper=False)
        return [(-1, prior), (1, torch.linalg.solve_triangular(self.factor, prior, upper=False))]

    def coefficients(self, values: Tensor, noise: Tensor) -> Tensor:
        before = torch.linalg.solve_triangular(self.root, values, upper=False)
        after = torch.linalg.solve_triangular(self.factor.mT, noise, upper=True)
        return torch.linalg.solve_triangular(self.root.mT, after - before, upper=True)

    def logdet(self) -> Tensor:
        return self.log_det


def plus_identity(matrix: Tensor) -> Tensor:
    """I + matrix, in place where no gradient asks for the old one."""
    if matrix.requires_grad:
        return matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


def log_det(factor: Tensor) -> Tensor:
    """log det L Lᵀ over all groups."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum()


def cholesky(matrix: Tensor, what: str, progress: bool = True, digits: torch.dtype | None = None) -> Tensor:
    """Lower factors of `[G, m, m]`, computed in `digits`; large ones are written over the matrix."""
    if matrix.requires_grad or matrix.shape[-1] < LARGE:
        return safe_cholesky(matrix, what, digits=digits)
    bar = tqdm(total=len(matrix), desc=f"factor of the {what}", leave=False, disable=not progress, bar_format=SHARE)
    with bar:
        for group in matrix:
            cholesky_in_place(group, what, bar.update, digits)
    return matrix
