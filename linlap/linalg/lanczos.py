"""Leading eigenpairs of a symmetric operator known only by its products with vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, steps: int, tolerance: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """Ritz values (descending) and vectors `[p, steps]` of a positive semi-definite operator on `[p]`.

    Every new vector is made orthogonal to all earlier ones, twice: without that, rounding brings found
    eigenvectors back as false copies. When the space the start spans is used up, the walk goes on from a
    fresh direction orthogonal to it, so that `steps = p` gives the whole spectrum.
    """
    dim, steps = start.numel(), min(steps, start.numel())
    basis = start.new_zeros(steps, dim)
    images = start.new_zeros(steps, dim)
    scale = 0.0
    vector = start / start.norm()
    generator = torch.Generator(device=start.device).manual_seed(1)
    for step in range(steps):
        basis[step] = vector
        images[step] = product(vector)
        scale = max(scale, float(images[step].norm()))
        used = basis[: step + 1]
        rest = _reject(images[step], used)
        if float(rest.norm()) <= tolerance * scale:
            rest = _reject(torch.randn(dim, generator=generator, dtype=start.dtype, device=start.device), used)
        vector = rest / rest.norm().clamp_min(torch.finfo(start.dtype).tiny)
    # Rayleigh-Ritz on the images themselves: exact for what the basis spans, restarts included.
    projected = basis @ images.mT
    values, vectors = torch.linalg.eigh(0.5 * (projected + projected.mT))
    return values.flip(0).clamp_min(0.0), (basis.mT @ vectors).flip(1)


def _reject(vector: Tensor, basis: Tensor) -> Tensor:
    """What is left of a vector without its part in the span of the rows of `basis`."""
    for _ in range(2):
        vector = vector - basis.mT @ (basis @ vector)
    return vector
