"""log det (Σ_c β_c H_c + P0) and its derivatives in logarithms: u `[k]` of prior precisions, s `[m]` of noise factors.

It is convex in (u, s) together: the determinant is a sum of products of precisions and noise factors, weighted by
squares of minors of a root of H, and the logarithm of such a sum of exponentials is convex.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linlap.evidence.descent import ArrowHessian, DenseHessian, Hessian, Local
from linlap.evidence.groups import Groups


class LogDet(ABC):
    """The part of the evidence that knows the curvature."""

    @abstractmethod
    def __call__(self, u: Tensor, s: Tensor) -> Local:
        """Value and derivatives at u `[k]`, s `[m]`, these joined in this order."""


@dataclass(frozen=True, eq=False)
class Terms(LogDet):
    """Σ_j times_j log(fixed_j + Σ_c β_c moving_jc + d^power_j) with d the precision of group `group_j`, k groups.

    That is the form on eigenvalues: `times`, `fixed`, `group` and `power` are `[J]`, `moving` is `[J, m]`.
    """

    k: int
    times: Tensor
    fixed: Tensor
    moving: Tensor
    group: Tensor
    power: Tensor

    @classmethod
    def of(cls, k: int, values: Tensor, group: Tensor, times: Tensor | float = 1.0, power: float = 1.0) -> Terms:
        """Of eigenvalues `[J]` that no noise changes, whose groups are given for each or for all."""
        ones = torch.ones_like(values)
        return cls(k, ones * times, values, values.new_empty(len(values), 0), group.expand(len(values)), ones * power)

    @classmethod
    def joined(cls, parts: Sequence[Terms]) -> Terms:
        names = ("times", "fixed", "moving", "group", "power")
        return cls(parts[0].k, *(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def noisy(self) -> Terms:
        """All eigenvalues as multiples of one noise factor."""
        return replace(self, fixed=torch.zeros_like(self.fixed), moving=self.fixed.unsqueeze(1))

    def steady(self, m: int) -> Terms:
        """As they are, among terms that know m noise factors."""
        return replace(self, moving=self.fixed.new_zeros(len(self.fixed), m))

    def __call__(self, u: Tensor, s: Tensor) -> Local:
        of_prior = (self.power * u[self.group]).exp()
        of_noise = self.moving * s.exp()
        whole = self.fixed + of_noise.sum(1) + of_prior
        q, r = of_prior / whole, of_noise / whole.unsqueeze(1)
        first = self.times * self.power * q
        gradient = torch.cat([self._by_group(first), (self.times.unsqueeze(1) * r).sum(0)])
        weighted = self.times.unsqueeze(1) * r
        hessian = ArrowHessian(
            self._by_group(first * self.power * (1 - q)),
            -self._by_group(first.unsqueeze(1) * r),
            weighted.sum(0).diag() - weighted.mT @ r,
        )
        return Local(float((self.times * whole.log()).sum()), gradient, hessian)

    def _by_group(self, v: Tensor) -> Tensor:
        if self.k == 1:
            return v.sum(0, keepdim=True)
        return v.new_zeros(self.k, *v.shape[1:]).index_add(0, self.group, v)


@dataclass(frozen=True, eq=False)
class DenseLogDet(LogDet):
    """By a Cholesky factor and the inverse at each point: `fixed` `[P, P]` if no noise is asked for, else `moving`, one
    `[P, P]` for each noise factor."""

    groups: Groups
    fixed: Tensor | None
    moving: Sequence[Tensor] = ()

    def __call__(self, u: Tensor, s: Tensor) -> Local:
        d = u.exp()[self.groups.index]
        precision = d.diag() if self.fixed is None else self.fixed + d.diag()
        for factor, part in zip(s.exp(), self.moving, strict=True):
            precision.add_(part, alpha=float(factor))
        factor, info = torch.linalg.cholesky_ex(precision)
        if info.any():  # singular to rounding: the search is to stay away
            return Local(float("inf"), torch.zeros_like(torch.cat([u, s])))
        del precision
        value = 2.0 * float(factor.diagonal().log().sum())
        inverse = torch.cholesky_inverse(factor)
        first, second = d * inverse.diagonal(), inverse.square() * d * d.unsqueeze(1)
        shares = self._shares(inverse, d, s)
        gradient = torch.cat([self.groups.sums(first), torch.stack([a.trace() for a in shares]) if shares else s])
        return Local(value, gradient, self._hessian(first, second, inverse, d, shares))

    def _shares(self, inverse: Tensor, d: Tensor, s: Tensor) -> list[Tensor]:
        """P⁻¹ β_c H_c for each noise factor; they and P⁻¹ P0 sum to the identity."""
        if len(self.moving) == 1:
            return [torch.eye(len(d), dtype=d.dtype, device=d.device) - inverse * d]
        return [float(factor) * (inverse @ part) for factor, part in zip(s.exp(), self.moving, strict=True)]

    def _hessian(self, first: Tensor, second: Tensor, inverse: Tensor, d: Tensor, shares: list[Tensor]) -> Hessian:
        sums = self.groups.sums
        upper = sums(first).diag() - sums(sums(second).mT)
        if not shares:
            return DenseHessian(upper)
        cross = torch.stack([-sums(d * (a * inverse).sum(1)) for a in shares], dim=1)
        corner = torch.stack([torch.stack([-(a * b.mT).sum() for b in shares]) for a in shares])
        corner = corner + torch.stack([a.trace() for a in shares]).diag()
        return DenseHessian(torch.cat([torch.cat([upper, cross], 1), torch.cat([cross.mT, corner], 1)]))


@dataclass(frozen=True, eq=False)
class AutomaticLogDet(LogDet):
    """A function of precisions `[k]` and noise factors `[m]`, differentiated by autograd: no second ones."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, u: Tensor, s: Tensor) -> Local:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.cat([u, s]).clone().requires_grad_()
            value = self.function(x[: len(u)].exp(), x[len(u) :].exp())
            (gradient,) = torch.autograd.grad(value, x)
        return Local(float(value), gradient)
