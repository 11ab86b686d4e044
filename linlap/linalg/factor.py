"""Square roots and eigendecompositions that do not fail on matrices which are singular up to rounding."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from linlap.checks import all_finite
from linlap.errors import LinlapWarning, NotFiniteError
from linlap.types import Gaussian

_LADDER = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
_PANEL = 64  # rows of a Cholesky factor made at a time
_SMALL = 128  # rows up to which an eigendecomposition takes no time worth saving
_SPARE = 8  # random vectors more than the rank, so that they span the range well


def symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)


def _require_finite(matrix: Tensor, what: str) -> None:
    if not all_finite(matrix):
        raise NotFiniteError(f"the {what} of shape {tuple(matrix.shape)} has NaN or infinite entries.")


def safe_cholesky(
    matrix: Tensor, what: str = "matrix", *, digits: torch.dtype | None = None, scale: Tensor | None = None
) -> Tensor:
    """Lower Cholesky factors of `[..., p, p]`; one that needs it gets the least jitter of a ladder, and a warning says
    how much.

    `digits` is what the matrix was computed in, where that is less than its dtype: pivots that are rounding of its
    `scale` `[...]`, by default the mean of its diagonal, are then taken as zero.
    """
    _require_finite(matrix, what)
    if scale is None:
        scale = scale_of(matrix)
    floor = 0.0 if digits in (None, matrix.dtype) else 4 * torch.finfo(digits).eps * scale
    wanting, added = torch.ones_like(scale, dtype=torch.bool), torch.zeros_like(scale)
    for step in _LADDER:
        added = torch.where(wanting, step * scale, added)
        shifted = matrix + added.unsqueeze(-1).expand(matrix.shape[:-1]).diag_embed() if step else matrix
        factor, info = _factor(shifted)
        pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square().amin(-1)
        wanting = (info != 0) | (pivots <= floor)
        if not wanting.any():
            if step:
                warnings.warn(
                    f"the {what} was singular; added {float(added.max()):.3g} to its diagonal",
                    LinlapWarning,
                    stacklevel=2,
                )
            return factor
    raise NotFiniteError(
        f"the {what} of shape {tuple(matrix.shape)} is not positive definite, even with {_LADDER[-1]:g} of its "
        "mean diagonal added. Use float64, a larger prior precision, or fewer duplicated inputs."
    )


def _factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Lower factors, and what is not zero where a matrix is not positive definite.

    Of 128 to 320 rows on a CPU by panels, which takes three fifths of the time: torch spends more on zeros above
    the diagonal, in LAPACK's column order, than on such factors. Larger ones are LAPACK's own business.
    """
    d = matrix.shape[-1]
    if not 2 * _PANEL <= d <= 5 * _PANEL or matrix.requires_grad or matrix.device.type != "cpu":
        return torch.linalg.cholesky_ex(matrix)
    factor = matrix.clone(memory_format=torch.contiguous_format)
    info = torch.zeros(matrix.shape[:-2], dtype=torch.int32)
    for start in range(0, d, _PANEL):
        stop = min(start + _PANEL, d)
        left, panel = factor[..., start:, :start], factor[..., start:, start:stop]
        if start:
            panel -= left @ left[..., : stop - start, :].mT
        corner, wrong = torch.linalg.cholesky_ex(panel[..., : stop - start, :])
        info |= wrong
        panel[..., : stop - start, :] = corner
        below = panel[..., stop - start :, :]
        below.copy_(torch.linalg.solve_triangular(corner.mT, below, upper=True, left=False))
        factor[..., start:stop, stop:] = 0
    return factor, info


def scale_of(matrix: Tensor) -> Tensor:
    """The mean of the diagonal of each of `[..., p, p]`, never zero."""
    diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
    return diagonal.abs().mean(-1).clamp_min(torch.finfo(matrix.dtype).tiny)


def safe_eigh(matrix: Tensor, what: str = "matrix", rank: int | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues, clamped at zero, and eigenvectors of positive semi-definite matrices `[..., p, p]`, in float64.

    `rank`, if known, is the most they can have: a low one saves most of the time.
    """
    _require_finite(matrix, what)
    matrix = symmetric(matrix.double())
    if rank is None or matrix.shape[-1] < max(_SMALL, 2 * (rank + _SPARE)):
        values, vectors = torch.linalg.eigh(matrix)
    else:
        values, vectors = _eigh_of_rank(matrix, rank + _SPARE)
    return values.clamp_min(0.0), vectors


def _eigh_of_rank(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The range is that of the matrix times as many random vectors; what is orthogonal to it has eigenvalue zero."""
    p = matrix.shape[-1]
    random = torch.randn(p, rank, dtype=matrix.dtype, generator=torch.Generator().manual_seed(0)).to(matrix.device)
    basis, _ = torch.linalg.qr(matrix @ random, mode="complete")
    within, beyond = basis.split([rank, p - rank], dim=-1)
    values, rotation = torch.linalg.eigh(symmetric(within.mT @ matrix @ within))
    zeros = values.new_zeros(*values.shape[:-1], p - rank)
    return torch.cat([zeros, values], -1), torch.cat([beyond, within @ rotation], -1)


def rounded(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Orthonormal vectors in another dtype, without entries that its rounding makes meaningless.

    Dead units leave eigenvectors with entries such as 1e-30. Products with those underflow, and processors take ten
    times as long over numbers that do.
    """
    vectors = vectors.to(dtype)
    return vectors.masked_fill(vectors.abs() < 0.01 * torch.finfo(dtype).eps, 0.0)


def psd_sqrt(cov: Tensor) -> Tensor:
    """S with S Sᵀ = cov `[..., c, c]`: Cholesky where it exists, an eigendecomposition where cov is singular."""
    factor, info = torch.linalg.cholesky_ex(cov)
    bad = info != 0
    if bad.any():
        values, vectors = safe_eigh(cov[bad], "covariance")
        factor = factor.clone()
        factor[bad] = (vectors * values.sqrt().unsqueeze(-2)).to(cov.dtype)
    return factor


def draw(gaussian: Gaussian, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Samples `[k, n, c]`; jointly over inputs when the covariance is."""
    mean = gaussian.mean
    noise = torch.randn((samples, *mean.shape), generator=generator, dtype=mean.dtype, device=mean.device)
    if gaussian.is_diagonal:
        return mean + noise * gaussian.cov.clamp_min(0).sqrt()
    if gaussian.is_joint:
        size = mean.numel()
        root = psd_sqrt(gaussian.cov.reshape(size, size))
        return mean + (noise.reshape(samples, size) @ root.mT).reshape(noise.shape)
    # By input, all samples in one product: a product for each sample would copy the root as many times.
    return mean + (noise.transpose(0, 1) @ psd_sqrt(gaussian.cov).mT).transpose(0, 1)
