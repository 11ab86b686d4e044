"""The log joint density of a process that is conditioned at its points, in coordinates of their kernel.

The mode is in the span of the points' features; θ*, where the search begins, is not. So m = a θ* + P0⁻¹ Jᵀ α, and
Newton's full step is to a = 0. Λ is never inverted: it may be singular.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linlap.curvature import Totals
from linlap.network.memory import require
from linlap.posteriors import FunctionPosterior
from linlap.posteriors.conditioning import cholesky, plus_identity
from linlap.posteriors.gather import Selection
from linlap.posteriors.points import Points, between, root_of
from linlap.refine.gp_ascent import Landscape, State

Solve = Callable[[Tensor], Tensor]
_CLOSE, _MOST = 1e-12, 200
"""Where conjugate gradients end: how far the error's energy has fallen, and after how many steps."""


@dataclass(frozen=True, eq=False)
class AtPoints(Landscape):
    """Positions are (α, a) `[G, m + 1]`; states remember f `[n, C]`. With K = J P0⁻¹ Jᵀ `[G, m, m]`, J θ* `[G, m]`, and
    θ*ᵀ P0 θ*, all in float64."""

    posterior: FunctionPosterior
    points: Points
    y: Tensor
    f: Tensor
    kernel: Tensor
    image: Tensor
    energy: Tensor

    @classmethod
    def of(cls, posterior: FunctionPosterior, data: Selection, progress: bool) -> AtPoints:
        """From the data at the points."""
        network, own = posterior.network, posterior.points
        points = replace(own, root=None, at=None, precise=True, progress=progress, _grams={})
        size = points.groups * points.rows**2
        require(
            size * 8 * (5 if posterior.coupled else 4),
            network.device,
            f"finding the mode with a kernel of {points.groups} × {points.rows} × {points.rows}",
            "Use inducing=ll.Subset(M) or ll.Sparse(M) with a smaller M, or outputs='independent'.",
        )
        theta = network.vector().double().expand(points.groups, -1)
        energy = (theta[0].square() / posterior.prior_variances()).sum()
        image = points.values(theta.unsqueeze(1))[..., 0]
        y = data.y.double() if data.y.is_floating_point() else data.y
        return cls(posterior, points, y, data.f.double(), points.gram(posterior.groups), image, energy)

    def start(self) -> State:
        """At θ*, or at the mean of a posterior that was refined before if that is higher."""
        shape, like = self.image.shape, self.image
        theta = self.at(torch.cat([torch.zeros_like(like), like.new_ones(shape[0], 1)], dim=1))
        f = self.posterior.points.at
        if f is None:
            return theta
        alpha = self._by_group(self.posterior.likelihood.residual(self.y, f.double()))
        again = self.at(torch.cat([alpha, like.new_zeros(shape[0], 1)], dim=1))
        return again if again.objective > theta.objective else theta

    def at(self, position: Tensor) -> State:
        alpha, a = position[:, :-1], position[:, -1:]
        reached = self._times(alpha)
        f = self.f + self._by_output(reached + (a - 1) * self.image)
        likelihood, y = self.posterior.likelihood, self.y
        fit = float(likelihood.log_prob(y, f).sum())
        penalty = (alpha * (reached + 2 * a * self.image)).sum() + a.square().sum() * self.energy
        left = self._by_group(likelihood.residual(y, f)) - alpha
        inner = (self.image * left).sum(1, keepdim=True) - a * self.energy
        gradient = torch.cat([self._times(left) - a * self.image, inner], dim=1)
        return State(position, fit - 0.5 * float(penalty), fit, gradient, f)

    def direction(self, state: State) -> Tensor:
        alpha, a, f = state.position[:, :-1], state.position[:, -1:], state.local
        likelihood = self.posterior.likelihood
        root = likelihood.hessian_sqrt(f)

        def curved(v: Tensor) -> Tensor:
            """Λ v."""
            each = self._by_output(v).unsqueeze(-1)
            return self._by_group((root @ (root.mT @ each)).squeeze(-1))

        wanted = self._by_group(likelihood.residual(self.y, f)) - alpha + a * curved(self.image)
        return torch.cat([self._solved(wanted, curved, self._nearly_inverse(root)), -a], dim=1)

    def _nearly_inverse(self, root: Tensor) -> Solve:
        """v ↦ (I + Λ K)⁻¹ v; for independent outputs with the diagonal of Λ."""
        matrix = plus_identity(between(self.kernel, root, self.posterior.coupled))
        factor = cholesky(matrix, "kernel of the data", self.points.progress)
        n = len(root)
        diagonal = root.square().sum(-1).sqrt().mT

        def solve(v: Tensor) -> Tensor:
            values = self._times(v)
            if not self.posterior.coupled:
                return v - diagonal * _solved(factor, diagonal * values)
            inner = (root.mT @ values.view(n, -1, 1)).view(1, -1)
            return v - (root @ _solved(factor, inner).view(n, -1, 1)).view(1, -1)

        return solve

    def _solved(self, wanted: Tensor, curved: Solve, nearly: Solve) -> Tensor:
        """x with (I + Λ K) x = wanted, by conjugate gradients in the energy xᵀ (K + K Λ K) x: a step or two where
        `nearly` is the inverse."""
        x, left = torch.zeros_like(wanted), wanted
        toward = step = nearly(left)
        energy = first = float((left * self._times(toward)).sum())
        for _ in range(_MOST):
            values = self._times(step)
            change = step + curved(values)
            steep = float((values * change).sum())
            if not (energy > 0 and steep > 0):
                break
            x, left = x + energy / steep * step, left - energy / steep * change
            toward = nearly(left)
            before, energy = energy, float((left * self._times(toward)).sum())
            if energy <= _CLOSE**2 * first:
                break
            step = toward + energy / before * step
        return x

    def slopes(self, state: State) -> tuple[float, float]:
        alpha, a = state.position[:, :-1], state.position[:, -1:]
        residual = self._by_group(self.posterior.likelihood.residual(self.y, state.local))
        gradient, push = self.points.pulled_back(torch.stack([residual - alpha, residual], dim=-1)).unbind(1)
        gradient = gradient - a * self.posterior.network.vector().double() / self.posterior.prior_variances()
        return float(gradient.norm()), max(float(push.norm()), float((push - gradient).norm()))

    def moved(self, state: State) -> FunctionPosterior:
        """The posterior with its mean there, and what the data say of it taken there."""
        posterior, f = self.posterior, state.local
        alpha, a = state.position[:, :-1], state.position[:, -1:]
        back = self.points.pulled_back(alpha.unsqueeze(-1))[:, 0] * posterior.prior_variances()
        points = self.points.weighted(root_of(posterior.likelihood, posterior.coupled), f)
        totals = Totals(posterior.totals.count, state.log_likelihood)
        shift = back + (a - 1) * posterior.network.vector().double()
        return replace(posterior, points=points, totals=totals, shift=shift)

    def _times(self, v: Tensor) -> Tensor:
        """K v for v `[G, m]`."""
        return (self.kernel @ v.unsqueeze(-1)).squeeze(-1)

    def _by_group(self, v: Tensor) -> Tensor:
        """`[n, C]` as `[G, m]`."""
        return v.reshape(1, -1) if self.posterior.coupled else v.mT

    def _by_output(self, v: Tensor) -> Tensor:
        """`[G, m]` as `[n, C]`."""
        return v.view(self.f.shape) if self.posterior.coupled else v.mT


def _solved(factor: Tensor, v: Tensor) -> Tensor:
    return torch.cholesky_solve(v.unsqueeze(-1), factor).squeeze(-1)
