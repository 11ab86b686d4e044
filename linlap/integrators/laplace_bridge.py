"""A Dirichlet over class probabilities in place of the Gaussian over logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from linlap.integrators.base import Integrator
from linlap.integrators.moments import Moments
from linlap.likelihoods import Categorical, Likelihood
from linlap.types import Gaussian


@dataclass(frozen=True)
class LaplaceBridge(Integrator):
    """The Dirichlet whose Laplace approximation in logits is the latent Gaussian; all its moments are closed.

    Logits are first centred, f − mean_c f, which leaves the softmax as it is. A Dirichlet's means fix its
    variances; where the latent's are others, which small variance does not cure, the probabilities are rough:
    off by 0.1 on average with 3 classes, by 0.05 with 10. Prefer Probit or MonteCarlo unless the Dirichlet
    is what you want. Concentrations are computed by their logarithms, so they are always positive and finite.
    """

    @classmethod
    def supports(cls, likelihood: Likelihood, outputs: int | None = None) -> bool:
        return isinstance(likelihood, Categorical)

    def _predict(self, likelihood: Likelihood, latent: Gaussian) -> td.Distribution:
        return likelihood.observe(log_concentrations(latent))

    def _moments(self, likelihood: Likelihood, latent: Gaussian) -> Moments:
        log_alpha = log_concentrations(latent)
        log_total = log_alpha.logsumexp(-1, keepdim=True)
        mean = log_alpha.softmax(-1)
        variance = mean * (1 - mean)
        expected = torch.digamma(log_total.exp()[..., 0] + 1) - (mean * torch.digamma(log_alpha.exp() + 1)).sum(-1)
        predictive = -(mean * log_alpha.log_softmax(-1)).sum(-1)
        aleatoric, epistemic = variance * torch.sigmoid(log_total), variance * torch.sigmoid(-log_total)
        expected = torch.minimum(expected.clamp_min(0), predictive)
        return Moments(mean, aleatoric, epistemic, expected, predictive)


def log_concentrations(latent: Gaussian) -> Tensor:
    """log α `[n, C]` with α_c = (1 − 2/C + e^{μ_c} Σ_l e^{−μ_l} / C²) / σ²_c for centred logits N(μ, σ²)."""
    mean = latent.mean - latent.mean.mean(-1, keepdim=True)
    classes = mean.shape[-1]
    odds = mean + (-mean).logsumexp(-1, keepdim=True) - 2 * math.log(classes)
    if classes > 2:
        odds = torch.logaddexp(odds, torch.full_like(odds, math.log1p(-2 / classes)))
    variance = _centred_variance(latent)
    # below this a concentration would leave what the dtype holds, and the Dirichlet is a point anyway
    smallest = torch.finfo(mean.dtype).eps ** 2
    limit = math.log(torch.finfo(mean.dtype).max) - 2
    # one shift for all classes of an input keeps their ratios
    raw = odds - variance.clamp_min(smallest).log()
    return raw - (raw.logsumexp(-1, keepdim=True) - limit).clamp_min(0)


def _centred_variance(latent: Gaussian) -> Tensor:
    """Variances of f − mean_c f."""
    classes = latent.mean.shape[1]
    if latent.is_diagonal:
        return latent.cov * (1 - 2 / classes) + latent.cov.sum(-1, keepdim=True) / classes**2
    across = latent.cov.mean(-1)
    return latent.cov.diagonal(dim1=-2, dim2=-1) - 2 * across + across.mean(-1, keepdim=True)
