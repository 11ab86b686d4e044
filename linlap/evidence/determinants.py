"""log det (Σ_c β_c H_c + P0) and its derivatives in logarithms: u `[k]` of prior precisions, s `[m]` of factors β.

It is convex in (u, s) together: the determinant is a sum of products of precisions and noise factors, weighted by
squares of minors of a root of H, and the logarithm of such a sum of exponentials is convex.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.curvature import Curvature, FullCurvature, Spectrum
from linlap.evidence.descent import ArrowHessian, DenseHessian, Hessian, Local
from linlap.evidence.groups import Groups

Spectra = Sequence[Spectrum]


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
    def of(cls, groups: Groups, whole: Spectra, noisy: Sequence[Spectra]) -> Terms:
        """From a curvature's spectra, and those of what each noise factor multiplies."""

        def each(number: float, part: Spectrum) -> Tensor:
            return torch.full_like(part.values, number)

        def known(spectra: Spectra, fixed: bool) -> Tensor:
            return torch.cat([part.values if part.fixed == fixed else each(0.0, part) for part in spectra])

        every = torch.cat([part.values for part in whole])
        return cls(
            groups.count,
            torch.cat([each(part.times, part) for part in whole]),
            known(whole, fixed=True) if noisy else every,
            torch.stack([known(part, fixed=False) for part in noisy], dim=1)
            if noisy
            else every.new_empty(len(every), 0),
            torch.cat([groups.by_parameter[part.names[0]].expand(len(part.values)) for part in whole]),
            torch.cat([each(part.power, part) for part in whole]),
        )

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


def log_det(curvature: Curvature, groups: Groups, noisy: Sequence[Curvature]) -> LogDet:
    """In the cheapest form there is, for a curvature whose noise is to change in the parts `noisy`, or not at all.

    Eigenvalues serve priors that are as uniform as a spectrum asks for, and one factor on all of the curvature, which
    leaves eigenvectors as they are; several factors only where there are no eigenvectors.
    """
    uniform, several = groups.over == "scalar", len(noisy) > 1
    spectra = curvature.spectra(uniform and not several)
    if spectra and (all(part.by_weight for part in spectra) or not (several or groups.over == "weight")):
        return Terms.of(groups, spectra, [one.spectra(uniform) for one in noisy])
    if isinstance(curvature, FullCurvature):
        moving = [one.matrix for one in noisy if isinstance(one, FullCurvature)]
        return DenseLogDet(groups, None if moving else curvature.matrix, moving)
    return AutomaticLogDet(_of_precision(curvature, groups, noisy))


def _of_precision(
    curvature: Curvature, groups: Groups, noisy: Sequence[Curvature]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Any structure. What it decomposes it does now, outside of what is differentiated."""
    curvature.precision(groups.precisions(torch.ones(groups.count, dtype=torch.float64, device=groups.device)))

    def function(d: Tensor, factors: Tensor) -> Tensor:
        return under_factors(curvature, noisy, factors).precision(groups.precisions(d)).logdet()

    return function


def under_factors(curvature: Curvature, noisy: Sequence[Curvature], factors: Tensor) -> Curvature:
    """Σ_c β_c H_c where `noisy` has a part for each factor: none, the whole curvature, or one an output."""
    if not noisy:
        return curvature
    return curvature.scaled(factors[0]) if len(noisy) == 1 else curvature.reweighted(noisy, factors)
