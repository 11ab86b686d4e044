"""Closed forms. A likelihood with one of its own registers it in `closed_predict` and `closed_moments`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError
from linlap.integrators.base import Integrator
from linlap.integrators.counts import NegativeBinomial
from linlap.integrators.moments import Moments
from linlap.likelihoods import Gaussian as GaussianLikelihood
from linlap.likelihoods import HeteroscedasticGaussian, Likelihood, Poisson
from linlap.likelihoods.base import bounded_exp, exponent_limit
from linlap.linalg import safe_cholesky
from linlap.types import Gaussian


@dataclass(frozen=True)
class Exact(Integrator):
    """Gaussian: the predictive itself. Poisson: the exact mean and variance, in a negative binomial.
    Heteroscedastic: the exact mean and covariance, in a normal."""

    @classmethod
    def supports(cls, likelihood: Likelihood, outputs: int | None = None) -> bool:
        return closed_predict.dispatch(type(likelihood)) is not closed_predict.dispatch(object)

    def variances_suffice(self, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, Poisson)

    def _predict(self, likelihood: Likelihood, latent: Gaussian) -> td.Distribution:
        return closed_predict(likelihood, latent)

    def _moments(self, likelihood: Likelihood, latent: Gaussian) -> Moments:
        return closed_moments(likelihood, latent)


@singledispatch
def closed_predict(likelihood: Likelihood, latent: Gaussian) -> td.Distribution:
    raise InputError(f"no closed form for {type(likelihood).__name__}.")


@singledispatch
def closed_moments(likelihood: Likelihood, latent: Gaussian) -> Moments:
    raise InputError(f"no closed form for {type(likelihood).__name__}.")


@closed_moments.register
def _(likelihood: GaussianLikelihood, latent: Gaussian) -> Moments:
    return Moments(latent.mean, likelihood.variance_of(latent.mean), latent.variance.clamp_min(0))


@closed_predict.register
def _(likelihood: GaussianLikelihood, latent: Gaussian) -> td.Distribution:
    return _normal(latent.mean, latent.cov, likelihood.variance_of(latent.mean))


@closed_moments.register
def _(likelihood: HeteroscedasticGaussian, latent: Gaussian) -> Moments:
    mean, log_variance = latent.mean.chunk(2, -1)
    spread, spread_log = latent.variance.clamp_min(0).chunk(2, -1)
    limit = exponent_limit(mean.dtype)
    return Moments(mean, (log_variance + 0.5 * spread_log).clamp(-limit, limit).exp(), spread)


@closed_predict.register
def _(likelihood: HeteroscedasticGaussian, latent: Gaussian) -> td.Distribution:
    moments = closed_moments(likelihood, latent)
    count = moments.mean.shape[1]
    cov = latent.cov[:, :count] if latent.is_diagonal else latent.cov[:, :count, :count]
    return _normal(moments.mean, cov, moments.aleatoric)


@closed_moments.register
def _(likelihood: Poisson, latent: Gaussian) -> Moments:
    mean, log_excess = _log_normal(latent)
    return Moments(mean, mean, bounded_exp(2 * mean.log() + log_excess))


@closed_predict.register
def _(likelihood: Poisson, latent: Gaussian) -> td.Distribution:
    mean, log_excess = _log_normal(latent)
    counts = NegativeBinomial((-log_excess).exp(), logits=mean.log() + log_excess)
    return td.Independent(counts, 1)


def _log_normal(latent: Gaussian) -> tuple[Tensor, Tensor]:
    """Mean m of the rate e^f, and the log of Var[e^f] / m² = e^v − 1, never −∞."""
    limit = exponent_limit(latent.mean.dtype)
    smallest = torch.finfo(latent.mean.dtype).eps ** 2
    variance = latent.variance.clamp(smallest, limit)
    log_mean = (latent.mean + 0.5 * variance).clamp(-limit, limit)
    return log_mean.exp(), variance.expm1().log()


def _normal(mean: Tensor, cov: Tensor, noise: Tensor) -> td.Distribution:
    """N(mean, cov + diag(noise)), as independent normals where that is all it is."""
    if cov.ndim == 2 or mean.shape[1] == 1:
        return td.Independent(td.Normal(mean, (cov.reshape(mean.shape).clamp_min(0) + noise).sqrt()), 1)
    root = safe_cholesky(cov + noise.diag_embed(), "predictive covariance")
    return td.MultivariateNormal(mean, scale_tril=root)
