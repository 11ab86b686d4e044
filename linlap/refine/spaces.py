"""Where a Gaussian over the linear model's weights is computed: over P weights, over N·C outputs, or weight by weight.

All three answer the same questions with the same numbers from the same noise; which is cheapest depends on P and N·C.
A mean is a tensor of coordinates that belong to the space. The precision is Jᵀ L J + D with L block diagonal
`[N, C, C]` and D = diag(d), known by a factor. Axes before the last ones are problems side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from linlap.linalg import safe_cholesky, safe_eigh
from linlap.refine.problem import Problem


@dataclass(frozen=True, eq=False)
class Factor:
    """A precision: its triangular factor (of a diagonal one the diagonal), and a root S of L `[N, C, C]`."""

    lower: Tensor
    root: Tensor


@dataclass(frozen=True, eq=False)
class Space(ABC):
    """Gaussians over the weights of one linear model."""

    problem: Problem

    @abstractmethod
    def start(self) -> Tensor:
        """Coordinates of the problem's start."""

    @abstractmethod
    def weights(self, mean: Tensor) -> Tensor:
        """The weights m `[P]` of coordinates."""

    @abstractmethod
    def outputs(self, mean: Tensor) -> Tensor:
        """f_lin at coordinates, `[N, C]`."""

    @abstractmethod
    def prior_term(self, mean: Tensor) -> Tensor:
        """mᵀ D m."""

    @abstractmethod
    def gradient(self, mean: Tensor, residual: Tensor) -> Tensor:
        """Jᵀ r − D m over weights `[P]`, for r `[N, C]`."""

    @abstractmethod
    def factor(self, blocks: Tensor) -> Factor:
        """The precision for L `[N, C, C]`."""

    @abstractmethod
    def direction(self, mean: Tensor, factor: Factor, residual: Tensor) -> Tensor:
        """Coordinates of (Jᵀ L J + D)⁻¹ (Jᵀ r − D m)."""

    @abstractmethod
    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        """J e `[N, C]` for e of the posterior's covariance, from standard normal `[P]` and `[N, C]`."""

    @abstractmethod
    def marginals(self, factor: Factor) -> Tensor:
        """Covariances of f at each datum, `[N, C, C]`."""

    @abstractmethod
    def logdet(self, factor: Factor) -> Tensor:
        """log det (Jᵀ L J + D) − log det D."""

    def _like_outputs(self, rows: Tensor) -> Tensor:
        """`[N·C, …]` as `[N, C, …]`."""
        return rows.unflatten(-1, self.problem.f.shape[-2:])

    @property
    def _by_datum(self) -> Tensor:
        """J as `[N, C, P]`."""
        return self.problem.J.unflatten(-2, self.problem.f.shape[-2:])


@dataclass(frozen=True, eq=False)
class WeightSpace(Space):
    """Coordinates are the weights themselves; one P × P Cholesky factor a step."""

    def start(self) -> Tensor:
        return self.problem.start

    def weights(self, mean: Tensor) -> Tensor:
        return mean

    def outputs(self, mean: Tensor) -> Tensor:
        p = self.problem
        return p.f + self._like_outputs(times(p.J, mean - p.theta))

    def prior_term(self, mean: Tensor) -> Tensor:
        return (self.problem.d * mean.square()).sum(-1)

    def gradient(self, mean: Tensor, residual: Tensor) -> Tensor:
        p = self.problem
        return times(p.J.mT, residual.flatten(-2)) - p.d * mean

    def factor(self, blocks: Tensor) -> Factor:
        weighted = (blocks @ self._by_datum).flatten(-3, -2)
        precision = self.problem.J.mT @ weighted
        precision.diagonal(dim1=-2, dim2=-1).add_(self.problem.d)
        return Factor(safe_cholesky(precision, "posterior precision"), root_of(blocks))

    def direction(self, mean: Tensor, factor: Factor, residual: Tensor) -> Tensor:
        return solved(factor.lower, self.gradient(mean, residual))

    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        p = self.problem
        pulled = times(p.J.mT, times(factor.root, data_noise).flatten(-2))
        e = solved(factor.lower, p.d.sqrt() * prior_noise + pulled)
        return self._like_outputs(times(p.J, e))

    def marginals(self, factor: Factor) -> Tensor:
        half = torch.linalg.solve_triangular(factor.lower, self.problem.J.mT, upper=False)  # [P, N·C]
        each = half.mT.unflatten(-2, self.problem.f.shape[-2:])
        return each @ each.mT

    def logdet(self, factor: Factor) -> Tensor:
        return log_det(factor.lower) - self.problem.d.log().sum(-1)


@dataclass(frozen=True, eq=False)
class DiagonalSpace(WeightSpace):
    """As `WeightSpace`, of the precision only its diagonal."""

    def factor(self, blocks: Tensor) -> Factor:
        root = root_of(blocks)
        seen = (root.mT @ self._by_datum).square().sum((-3, -2))
        return Factor(seen + self.problem.d, root)

    def direction(self, mean: Tensor, factor: Factor, residual: Tensor) -> Tensor:
        return self.gradient(mean, residual) / factor.lower

    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        return self._like_outputs(times(self.problem.J, prior_noise * factor.lower.rsqrt()))

    def marginals(self, factor: Factor) -> Tensor:
        each = self._by_datum
        return (each / factor.lower[..., None, None, :]) @ each.mT

    def logdet(self, factor: Factor) -> Tensor:
        return (factor.lower.log() - self.problem.d.log()).sum(-1)


@dataclass(frozen=True, eq=False)
class FunctionSpace(Space):
    """Coordinates (α, a) `[N·C + 1]` stand for a · start + D⁻¹ Jᵀ α; one N·C × N·C Cholesky factor a step.

    With W = S (I + Sᵀ K S)⁻¹ Sᵀ, the posterior covariance is D⁻¹ − D⁻¹ Jᵀ W J D⁻¹: every update of a mean that is
    `start` or in the span of the data's features stays of that form.
    """

    @cached_property
    def _kernel(self) -> Tensor:
        """K = J D⁻¹ Jᵀ."""
        scaled = self.problem.J * self.problem.d.rsqrt().unsqueeze(-2)
        return scaled @ scaled.mT

    @cached_property
    def _seen_start(self) -> Tensor:
        """J start."""
        return times(self.problem.J, self.problem.start)

    @cached_property
    def _base(self) -> Tensor:
        """f − J θ*, as rows."""
        p = self.problem
        return p.f.flatten(-2) - times(p.J, p.theta)

    @cached_property
    def _start_norm(self) -> Tensor:
        p = self.problem
        return (p.d * p.start.square()).sum(-1)

    def start(self) -> Tensor:
        first = self._base.new_zeros(*self._base.shape[:-1], self.problem.rows + 1)
        first[..., -1] = 1.0
        return first

    def weights(self, mean: Tensor) -> Tensor:
        p, (alpha, a) = self.problem, parted(mean)
        return a * p.start + times(p.J.mT, alpha) / p.d

    def _rows(self, mean: Tensor) -> Tensor:
        """J m."""
        alpha, a = parted(mean)
        return a * self._seen_start + times(self._kernel, alpha)

    def outputs(self, mean: Tensor) -> Tensor:
        return self._like_outputs(self._base + self._rows(mean))

    def prior_term(self, mean: Tensor) -> Tensor:
        alpha, a = parted(mean)
        cross = (alpha * (self._rows(mean) + a * self._seen_start)).sum(-1)
        return cross + a[..., 0].square() * self._start_norm

    def gradient(self, mean: Tensor, residual: Tensor) -> Tensor:
        p, (alpha, a) = self.problem, parted(mean)
        return times(p.J.mT, residual.flatten(-2) - alpha) - a * p.d * p.start

    def factor(self, blocks: Tensor) -> Factor:
        root = root_of(blocks)
        inner = spread(root, spread(root, self._kernel).mT)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return Factor(safe_cholesky(inner, "posterior precision"), root)

    def direction(self, mean: Tensor, factor: Factor, residual: Tensor) -> Tensor:
        alpha, a = parted(mean)
        u = residual.flatten(-2) - alpha
        change = u - self._gain(factor, times(self._kernel, u) - a * self._seen_start)
        return torch.cat([change, -a], -1)

    def _gain(self, factor: Factor, v: Tensor) -> Tensor:
        """W v."""
        inner = solved(factor.lower, times(factor.root.mT, self._like_outputs(v)).flatten(-2))
        return times(factor.root, self._like_outputs(inner)).flatten(-2)

    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        p = self.problem
        z = times(p.J, prior_noise * p.d.rsqrt())
        u = times(factor.root, data_noise).flatten(-2)
        inner = u - self._gain(factor, z + times(self._kernel, u))
        return self._like_outputs(z + times(self._kernel, inner))

    def marginals(self, factor: Factor) -> Tensor:
        n, c = self.problem.f.shape[-2:]
        half = torch.linalg.solve_triangular(factor.lower, spread(factor.root, self._kernel), upper=False)
        each = half.mT.unflatten(-2, (n, c))
        own = self._kernel.unflatten(-2, (n, c)).unflatten(-1, (n, c)).diagonal(dim1=-4, dim2=-2)  # [C, C, N]
        return own.movedim(-1, -3) - each @ each.mT

    def logdet(self, factor: Factor) -> Tensor:
        return log_det(factor.lower)


def cheapest(problem: Problem, steps: int) -> Space:
    """Weights or outputs, by counted multiplications of `steps` steps with a full covariance."""
    p, rows = problem.size, problem.rows
    over_weights = steps * (rows * p**2 + p**3 / 3 + rows * p**2)
    over_outputs = rows**2 * p + steps * (rows**3 / 3 + rows**3)
    return FunctionSpace(problem) if over_outputs < over_weights else WeightSpace(problem)


def times(matrix: Tensor, v: Tensor) -> Tensor:
    """Matrices `[…, i, j]` times vectors `[…, j]`."""
    return (matrix @ v.unsqueeze(-1)).squeeze(-1)


def solved(lower: Tensor, v: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ v."""
    return torch.cholesky_solve(v.unsqueeze(-1), lower).squeeze(-1)


def log_det(lower: Tensor) -> Tensor:
    return 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def parted(mean: Tensor) -> tuple[Tensor, Tensor]:
    """α `[N·C]` and a `[1]`."""
    return mean[..., :-1], mean[..., -1:]


def spread(root: Tensor, matrix: Tensor) -> Tensor:
    """Sᵀ M for M `[N·C, q]` and S block diagonal `[N, C, C]`."""
    n, c = root.shape[-3:-1]
    if c == 1:
        return root[..., 0] * matrix
    return (root.mT @ matrix.unflatten(-2, (n, c))).flatten(-3, -2)


def root_of(blocks: Tensor) -> Tensor:
    """The symmetric root of L `[…, N, C, C]`: continuous in it, and exactly zero where a softmax knows nothing."""
    if blocks.shape[-1] == 1:
        return blocks.clamp_min(0).sqrt()
    values, vectors = safe_eigh(blocks, "likelihood's curvature")
    kept = values > 1e-12 * values.amax(-1, keepdim=True)
    return (vectors * (values * kept).sqrt().unsqueeze(-2)) @ vectors.mT
