"""A Gaussian process under every multiple of one prior, by one eigendecomposition of its kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.jacobian import grams
from linlap.linalg import rounded, safe_eigh


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Under a prior P0 let F be the features of the process's points, F P0⁻¹ Fᵀ = U D Uᵀ and k = F P0⁻¹ Jᵀ. Under ρ P0
    covariances are J P0⁻¹ J′ᵀ / ρ − (Uᵀ k)ᵀ w (Uᵀ k′) with w = 1 / (ρ (ρ + D)).

    Where all data are projected on the points, with F P0⁻¹ Fᵀ = R Rᵀ, the decomposition is that of R⁻¹ (Σ k Λ kᵀ) R⁻ᵀ,
    k stands for R⁻¹ k, and w = D / (ρ (ρ + D)).
    """

    vectors: Tensor
    """`[G, m, m]`, in the network's dtype."""
    values: Tensor
    """`[G, m]`, in float64."""
    root: Tensor | None = None

    @classmethod
    def of(cls, matrix: Tensor, dtype: torch.dtype, root: Tensor | None = None) -> Spectrum:
        values, vectors = safe_eigh(matrix.detach(), "kernel of the data")
        return cls(rounded(vectors, dtype), values, None if root is None else root.detach().to(dtype))

    def remaining(self, own: Tensor, k: Tensor, ratios: Tensor, coupled: bool, diagonal: bool) -> Tensor:
        """What the data leave of `own`, the covariances J P0⁻¹ Jᵀ of each input `[n, C, C]` or `[n, C]`, under P0 times
        each ratio `[p]`; k `[G, m, columns]`. For independent outputs variances `[p, n, C]` from variances."""
        k = k if self.root is None else torch.linalg.solve_triangular(self.root, k, upper=False)
        k = self.vectors.mT @ k
        scale = ratios.view(-1, 1, 1)
        weights = (1.0 if self.root is None else self.values) / (scale * (scale + self.values))  # [p, G, m]
        if coupled:
            rows = k[0].view(k.shape[1], *own.shape[:2]).permute(1, 2, 0).contiguous()
            taken = grams(rows, weights[:, 0].to(k.dtype), diagonal)
        else:
            taken = (k.square().mT @ weights.permute(1, 2, 0).to(k.dtype)).permute(2, 1, 0)
        left = own / ratios.to(own.dtype).view(-1, *[1] * own.ndim) - taken
        # the difference of large numbers, where little variance is left
        if left.ndim == 3:
            return left.clamp_min(0)
        return left - left.diagonal(dim1=2, dim2=3).clamp_max(0).diag_embed()
