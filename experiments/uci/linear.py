"""Linear models side by side: the law of f at new inputs and samples of weights, over weights or outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.refine.spaces import DiagonalSpace, Factor, FunctionSpace, Space, spread, times
from linlap.types import Gaussian


@dataclass(frozen=True, eq=False)
class Fitted:
    """The Gaussian N(mean, (Jᵀ L J + D)⁻¹) over the weights of each linear model: its space, and coordinates."""

    space: Space
    mean: Tensor
    factor: Factor

    @classmethod
    def laplace(cls, space: Space, blocks: Tensor | None = None) -> Fitted:
        """At the problem's start, with its own Λ or the one given."""
        mean = space.start()
        own = space.problem.blocks(space.outputs(mean)) if blocks is None else blocks
        return cls(space, mean, space.factor(own))

    def latent(self, J: Tensor, f: Tensor) -> Gaussian:
        """The law of f_lin `[…, n, C]` at inputs with Jacobians `[…, n·C, P]` and outputs f `[…, n, C]` at θ*."""
        p = self.space.problem
        shift = times(J, self.space.weights(self.mean) - p.theta).view(f.shape)
        return Gaussian(f + shift, self._covariances(J, f.shape[-2:]))

    def _covariances(self, J: Tensor, shape: torch.Size) -> Tensor:
        p, factor = self.space.problem, self.factor
        rows = J.unflatten(-2, shape)
        if isinstance(self.space, DiagonalSpace):
            return (rows / factor.lower[..., None, None, :]) @ rows.mT
        if not isinstance(self.space, FunctionSpace):
            return _squares(torch.linalg.solve_triangular(factor.lower, J.mT, upper=False), shape)
        scaled = rows / p.d[..., None, None, :]
        kernel = p.J @ scaled.flatten(-3, -2).mT
        seen = torch.linalg.solve_triangular(factor.lower, spread(factor.root, kernel), upper=False)
        return scaled @ rows.mT - _squares(seen, shape)

    def sampled(self, samples: int, generator: torch.Generator) -> Tensor:
        """e `[…, S, P]` of the posterior's covariance."""
        p, factor = self.space.problem, self.factor
        like = {"generator": generator, "dtype": p.d.dtype, "device": p.d.device}
        noise = torch.randn(*p.d.shape[:-1], samples, p.size, **like)
        if isinstance(self.space, DiagonalSpace):
            return noise * factor.lower.rsqrt().unsqueeze(-2)
        if not isinstance(self.space, FunctionSpace):
            return torch.linalg.solve_triangular(factor.lower.mT, noise.mT, upper=True).mT
        # Matheron: a draw of the prior, corrected by what the data say about it.
        prior = noise * p.d.rsqrt().unsqueeze(-2)
        seen = spread(factor.root, p.J @ prior.mT)
        seen = seen + torch.randn(seen.shape, **like)
        inner = torch.cholesky_solve(seen, factor.lower)
        back = spread(factor.root.mT, inner)
        return prior - (p.J.mT @ back).mT / p.d.unsqueeze(-2)


def log_evidence(fitted: Fitted) -> Tensor:
    """log p(y) of each Laplace approximation."""
    space = fitted.space
    fit = space.problem.log_likelihood(space.outputs(fitted.mean))
    return fit - 0.5 * (space.prior_term(fitted.mean) + space.logdet(fitted.factor))


def _squares(half: Tensor, shape: torch.Size) -> Tensor:
    """Covariances `[…, n, C, C]` from a root `[…, q, n·C]`."""
    each = half.mT.unflatten(-2, shape)
    return each @ each.mT
