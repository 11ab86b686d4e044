"""The oracle for refinement: over weights, with every matrix written out, one datum at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tests import reference


class Model(NamedTuple):
    """f_lin(x_n, θ) = f_n + J_n (θ − θ*) with its data: the likelihood by name, the prior's precisions `[P]`."""

    likelihood: str
    options: dict[str, object]
    J: Tensor
    f: Tensor
    y: Tensor
    theta: Tensor
    prior: Tensor

    def outputs(self, weights: Tensor) -> Tensor:
        return self.f + torch.einsum("ncp,p->nc", self.J, weights - self.theta)

    def log_likelihood(self, weights: Tensor) -> Tensor:
        return reference.log_prob(self.likelihood, self.y, self.outputs(weights), **self.options).sum()

    def log_joint(self, weights: Tensor) -> Tensor:
        return self.log_likelihood(weights) - 0.5 * (self.prior * weights**2).sum()

    def gradient(self, weights: Tensor, f: Tensor) -> Tensor:
        residual = reference.residual(self.likelihood, self.y, f, **self.options)
        return torch.einsum("ncp,nc->p", self.J, residual) - self.prior * weights

    def curvature(self, f: Tensor) -> Tensor:
        return reference.full_ggn(self.J, reference.lam(self.likelihood, f, **self.options))


def mode(model: Model) -> Tensor:
    """By Newton's method from θ*, halving steps that do not climb, until nothing changes."""
    weights = model.theta.clone()
    for _ in range(200):
        f = model.outputs(weights)
        step = torch.linalg.solve(model.curvature(f) + torch.diag(model.prior), model.gradient(weights, f))
        size = 1.0
        while model.log_joint(weights + size * step) < model.log_joint(weights) and size > 1e-9:
            size /= 2
        weights = weights + size * step
        if step.norm() < 1e-13 * (1 + weights.norm()):
            break
    return weights


class Step(NamedTuple):
    """q = N(mean, precision⁻¹) and the average L of Λ so far `[N, C, C]`."""

    mean: Tensor
    precision: Tensor
    blocks: Tensor


Sampler = Callable[[int, Tensor, Tensor], Tensor]
"""For the step, the precision and L, the samples' distances from the mean `[S, P]`."""


def natural_gradient(model: Model, steps: int, rate: float, sampler: Sampler, diagonal: bool = False) -> list[Step]:
    """The paper's updates: first the precision, then the mean, with one or more samples of the weights."""
    eye = torch.diag(model.prior)
    blocks = reference.lam(model.likelihood, model.f, **model.options)
    precision = model.curvature(model.f) + eye
    precision = torch.diag(precision.diagonal()) if diagonal else precision
    mean, found = model.theta.clone(), []
    for step in range(steps):
        curvature, gradient, lam = torch.zeros_like(precision), torch.zeros_like(mean), torch.zeros_like(blocks)
        samples = sampler(step, precision, blocks)
        for deviation in samples:
            f = model.outputs(mean + deviation)
            curvature += (model.curvature(f) + eye) / len(samples)
            lam += reference.lam(model.likelihood, f, **model.options) / len(samples)
            residual = reference.residual(model.likelihood, model.y, f, **model.options)
            gradient += torch.einsum("ncp,nc->p", model.J, residual) / len(samples)
        if diagonal:
            curvature = torch.diag(curvature.diagonal())
        precision = (1 - rate) * precision + rate * curvature
        blocks = (1 - rate) * blocks + rate * lam
        mean = mean + rate * torch.linalg.solve(precision, gradient - model.prior * mean)
        found.append(Step(mean, precision, blocks))
    return found


def gaussian_elbo(model: Model, mean: Tensor, precision: Tensor, noise: float) -> Tensor:
    """E_q[log p(y | f)] − KL(q ‖ p) where the likelihood is Gaussian."""
    covariance = torch.linalg.inv(precision)
    spread = torch.einsum("ncp,pq,ncq->", model.J, covariance, model.J)
    fit = model.log_likelihood(mean) - 0.5 * spread / noise**2
    trace, size = (model.prior * covariance.diagonal()).sum(), len(mean)
    change = torch.linalg.slogdet(precision).logabsdet - model.prior.log().sum()
    return fit - 0.5 * (trace + (model.prior * mean**2).sum() - size + change)
