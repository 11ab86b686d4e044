"""The oracle of a process's mode: plain Newton over weights with dense Jacobians; and how the tests build processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import linlap as ll
from linlap.posteriors import FunctionPosterior
from linlap.refine.gp_mode import GpMode
from tests import reference, reference_gp
from tests.checks import close
from tests.truth import Truth, truth_of

PRIOR = 0.7
CHOICES = {"everything": lambda n: ll.Everything(), "subset": ll.Subset, "top": ll.TopM, "sparse": ll.Sparse}


@dataclass
class Model:
    """The oracle: Σ log p(y | f + J (θ − θ*)) − ½ θᵀ P0 θ with dense J `[N, C, Q]`."""

    truth: Truth
    J: Tensor
    theta: Tensor
    prior: Tensor

    def f(self, mean: Tensor) -> Tensor:
        return self.truth.f + self.J @ (mean - self.theta)

    def objective(self, mean: Tensor) -> Tensor:
        fit = reference.log_prob(self.truth.law.oracle, self.truth.y, self.f(mean), **self.truth.options).sum()
        return fit - 0.5 * (self.prior * mean**2).sum()

    def gradient(self, mean: Tensor) -> Tensor:
        r = reference.residual(self.truth.law.oracle, self.truth.y, self.f(mean), **self.truth.options)
        return torch.einsum("ncp,nc->p", self.J, r) - self.prior * mean

    def lam(self, mean: Tensor) -> Tensor:
        return reference.lam(self.truth.law.oracle, self.f(mean), **self.truth.options)

    def mode(self, basis: Tensor | None = None) -> Tensor:
        """From θ* with halved steps; over θ* + the span of a basis `[Q, k]` where one is given."""
        mean, basis = self.theta.clone(), torch.eye(len(self.theta)).to(self.theta) if basis is None else basis
        for _ in range(500):
            H = basis.T @ (reference.full_ggn(self.J, self.lam(mean)) + torch.diag(self.prior)) @ basis
            step = basis @ torch.linalg.solve(H, basis.T @ self.gradient(mean))
            size = 1.0
            while self.objective(mean + size * step) < self.objective(mean) - 1e-12 and size > 1e-10:
                size /= 2
            mean = mean + size * step
            if (basis.T @ self.gradient(mean)).norm() < 1e-12 * (1 + (self.prior * mean).norm()):
                break
        return mean


def model_of(truth: Truth, outputs: str = "coupled", precision: Any = PRIOR) -> Model:
    """Independent outputs each have weights of their own, `[C·P]` in all."""
    prior = truth.prior(precision)
    if outputs == "coupled":
        return Model(truth, truth.J, truth.theta, prior)
    n, c, p = truth.J.shape
    J = torch.zeros(n, c, c, p, dtype=truth.J.dtype)
    J[:, range(c), range(c)] = truth.J
    return Model(truth, J.flatten(2), truth.theta.repeat(c), prior.repeat(c))


def process(truth: Truth, inducing: Any = None, outputs: Any = "coupled", prior: Any = PRIOR, **options: Any) -> Any:
    given = {"data": (truth.x, truth.y)} | options
    return ll.gaussian_process(
        truth.model(), given.pop("data"), truth.likelihood, inducing, outputs, prior, progress=False, **given
    )


def refined(posterior: Any, truth: Truth, **options: Any) -> Any:
    return GpMode(**options).refine(posterior, (truth.x, truth.y), progress=False)


def many(law: str = "categorical") -> Truth:
    return truth_of("mlp_many_data", law)


def at_mode(found: Any, model: Model, mean: Tensor, outputs: str, tolerance: float = 1e-8) -> None:
    """Mean, covariance, samples' shift and evidence are those at the oracle's mean."""
    truth = model.truth
    lam, f = model.lam(mean), model.f(mean)
    law = found.latent(truth.x, joint=True)
    close(law.mean, f, tolerance)
    prior = model.prior[: len(truth.theta)]
    fit = reference.log_prob(truth.law.oracle, truth.y, f, **truth.options).sum()
    if outputs == "coupled":
        precision = reference.full_ggn(truth.J, lam) + torch.diag(prior)
        close(law.cov, reference.joint_latent_covariance(truth.J, torch.linalg.inv(precision)), tolerance)
        log_det = torch.linalg.slogdet(precision).logabsdet - prior.log().sum()
        evidence = fit - 0.5 * ((prior * mean**2).sum() + log_det)
    else:
        law = found.latent(truth.x, diagonal=True)
        close(law.cov, reference_gp.independent(truth.J, lam, truth.J, prior), tolerance)
        log_joint = fit - 0.5 * (model.prior * mean**2).sum()
        evidence = reference_gp.independent_evidence(truth.J, lam, log_joint, torch.zeros_like(prior), prior)
    close(found.log_evidence(), evidence, tolerance)


def same_law(one: FunctionPosterior, other: FunctionPosterior, x: Any, tolerance: float = 1e-8) -> None:
    for joint in (False, True):
        close(one.latent(x, joint=joint).mean, other.latent(x, joint=joint).mean, tolerance)
        close(one.latent(x, joint=joint).cov, other.latent(x, joint=joint).cov, tolerance)
    close(one.log_evidence(), other.log_evidence(), tolerance)
