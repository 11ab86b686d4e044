"""The log joint density of a process that sees its data through inducing inputs, at means in the span of those and θ*.

One pass over the data for every place that is looked at. It keeps the density of the linear model itself, over a
subspace: with all data inducing that is the exact one, and it is never below that of θ*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from linlap.curvature import Totals
from linlap.data import Batches
from linlap.distributed import sum_over_processes
from linlap.errors import InputError
from linlap.network.memory import available
from linlap.posteriors import FunctionPosterior, Projection
from linlap.posteriors.conditioning import cholesky, plus_identity
from linlap.posteriors.gather import kernels
from linlap.posteriors.points import Points, moved, weighted
from linlap.refine.gp_ascent import Landscape, State, check_targets


@dataclass(frozen=True, eq=False)
class ThroughPoints(Landscape):
    """Positions are w `[G, m + 1]`: weights θ* + Bᵀ w, whose rows B are orthonormal under P0. The first m span the
    inducing features, P0⁻¹ Jᵀ R⁻ᵀ; the last, `aside` `[G, P]`, is what of θ* is outside of that span, or zero.

    `centre` `[G, m + 1]` are the coordinates of θ* itself. States remember Σ φ Λ φᵀ with φ = B Jᵀ, `[G, m + 1, m + 1]`;
    `across` independent outputs, where Λ has such entries and memory is enough, `[1, C (m + 1), C (m + 1)]`. Without
    those entries steps still climb, but many more are needed.
    """

    posterior: FunctionPosterior
    projection: Projection
    points: Points
    batches: Batches
    root: Tensor
    aside: Tensor
    centre: Tensor
    across: bool

    @classmethod
    def of(
        cls, posterior: FunctionPosterior, projection: Projection, batches: Batches, progress: bool
    ) -> ThroughPoints:
        """From data that are gone through again at every step."""
        network = posterior.network
        precise = network.dtype != torch.float64
        points = replace(posterior.points, progress=progress, precise=precise)
        root = projection.root / posterior.ratio(projection.base).sqrt()
        if precise:
            points = replace(points, _grams={})
            root = cholesky(points.gram(posterior.groups), "kernel of the inducing inputs", progress)
        g, m = root.shape[:2]
        aside, centre = root.new_zeros(g, network.size), root.new_zeros(g, m + 1)
        across = _fits_across(posterior, g * (m + 1))
        empty = cls(posterior, projection, points, batches, root, aside, centre, across)
        theta = network.vector().double().expand(g, -1)
        return empty._around(theta)

    def _around(self, theta: Tensor) -> ThroughPoints:
        """With θ* `[G, P]` among what is spanned."""
        variances, aside = self.posterior.prior_variances(), theta
        for _ in range(2):  # what rounding leaves inside the span goes the second time
            aside = aside - self._weights(self._inside(aside))
        norm, whole = ((v.square() / variances).sum(1, keepdim=True).sqrt() for v in (aside, theta))
        unit = torch.where(norm > 1e-12 * whole, aside / norm.clamp_min(1e-300), torch.zeros_like(aside))
        spanned = replace(self, aside=unit)
        return replace(spanned, centre=spanned._coordinates(theta))

    def start(self) -> State:
        shift = self.posterior.shift
        if shift is not None:
            return self.at(self._coordinates(shift))
        state = self.at(torch.zeros_like(self.centre))
        check_targets(self.posterior, state.log_likelihood)
        return state

    def at(self, position: Tensor) -> State:
        """One pass over the data."""
        posterior, coupled = self.posterior, self.posterior.coupled
        likelihood = posterior.likelihood
        fit, number = 0.0, 0
        push, seen = torch.zeros_like(position), self._nothing_seen()
        for f, y, phi in self._features():
            f = f + self._by_output((phi.mT @ position.unsqueeze(-1)).squeeze(-1), len(f))
            y = likelihood.prepare(y, f)
            residual = likelihood.residual(y, f)
            root = likelihood.hessian_sqrt(f)
            fit, number = fit + float(likelihood.log_prob(y, f).sum()), number + len(f)
            push += (phi @ (residual.reshape(1, -1, 1) if coupled else residual.mT.unsqueeze(-1))).squeeze(-1)
            if self.across:
                rows = torch.einsum("cqn,ncr->cqnr", phi, root).reshape(1, phi.shape[0] * phi.shape[1], -1)
            else:
                rows = weighted(phi, root, coupled)
            seen += rows @ rows.mT
        sums: dict[str, Any] = sum_over_processes({"fit": fit, "number": number, "push": push, "seen": seen})
        if int(sums["number"]) != posterior.totals.count:
            raise InputError(
                f"the process was built on {posterior.totals.count} data and these are {sums['number']}; pass the same "
                "data, or build one on these with ll.gaussian_process."
            )
        mean = position + self.centre
        fit, push, seen = float(sums["fit"]), sums["push"], sums["seen"]
        return State(position, fit - 0.5 * float(mean.square().sum()), fit, push - mean, seen)

    def _features(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of the data f(x; θ*), targets, and φ `[G, m + 1, columns]`."""
        coupled, groups = self.posterior.coupled, self.posterior.groups
        for part in kernels(self.points, groups, self.batches, "a step towards the mode"):
            inside = torch.linalg.solve_triangular(self.root, part.k.double(), upper=False)
            outside = moved(part.features, self.aside).double()
            row = outside.reshape(1, 1, -1) if coupled else outside.mT.unsqueeze(1)
            yield part.f.double(), part.y, torch.cat([inside, row], dim=1)

    def direction(self, state: State) -> Tensor:
        matrix = plus_identity(state.local.clone())
        factor = cholesky(matrix, "curvature of the data", self.points.progress)
        right = state.gradient.reshape(len(factor), -1, 1)
        return torch.cholesky_solve(right, factor).view(state.position.shape)

    def slopes(self, state: State) -> tuple[float, float]:
        mean = state.position + self.centre
        variances = self.posterior.prior_variances()
        gradient, push, pull = (
            float((self._weights(v) / variances).norm()) for v in (state.gradient, state.gradient + mean, mean)
        )
        return gradient, max(push, pull)

    def moved(self, state: State) -> FunctionPosterior:
        """The posterior with its mean there, and what the data say of it taken there."""
        posterior, m = self.posterior, self.root.shape[-1]
        seen = state.local
        if self.across:
            g, q = self.centre.shape
            seen = torch.stack([seen[0, c * q : (c + 1) * q, c * q : (c + 1) * q] for c in range(g)])
        ratio = posterior.ratio(self.projection.base)
        projection = replace(self.projection, root=self.root * ratio.sqrt(), seen=seen[:, :m, :m] * ratio)
        totals = Totals(posterior.totals.count, state.log_likelihood)
        return replace(posterior, projection=projection, totals=totals, shift=self._weights(state.position))

    def _inside(self, weights: Tensor) -> Tensor:
        """B P0 v of the first m rows for v `[G, P]`."""
        values = self.points.values(weights.unsqueeze(1)).double()
        return torch.linalg.solve_triangular(self.root, values, upper=False)[..., 0]

    def _coordinates(self, weights: Tensor) -> Tensor:
        """B P0 v `[G, m + 1]` for v `[G, P]`."""
        outside = (self.aside * weights / self.posterior.prior_variances()).sum(1, keepdim=True)
        return torch.cat([self._inside(weights), outside], dim=1)

    def _weights(self, w: Tensor) -> Tensor:
        """Bᵀ w `[G, P]` for `[G, m + 1]`, or for the first m."""
        m = self.root.shape[-1]
        inner = torch.linalg.solve_triangular(self.root.mT, w[:, :m].unsqueeze(-1), upper=True)
        inside = self.points.pulled_back(inner)[:, 0].double() * self.posterior.prior_variances()
        return inside + w[:, m:] * self.aside if w.shape[1] > m else inside

    def _by_output(self, v: Tensor, n: int) -> Tensor:
        return v.view(n, -1) if self.posterior.coupled else v.mT

    def _nothing_seen(self) -> Tensor:
        g, q = self.centre.shape
        return self.centre.new_zeros((1, g * q, g * q) if self.across else (g, q, q))


def _fits_across(posterior: FunctionPosterior, rows: int) -> bool:
    outputs = posterior.network.outputs_per_input
    if posterior.coupled or outputs == 1:
        return False
    root = posterior.likelihood.hessian_sqrt(torch.zeros(1, outputs, dtype=torch.float64))[0]
    across = (root @ root.mT).fill_diagonal_(0)
    return bool(across.any()) and 3 * 8 * rows**2 <= available(posterior.network.device) // 4
