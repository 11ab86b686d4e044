"""Regression whose noise the network predicts too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError
from linlap.likelihoods.base import Likelihood, check_pair, exponent_limit, real_targets

_HALF_LOG_2PI = 0.9189385332046727


@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """Outputs are M means, then M log variances s: y ~ N(mean, e^s).

    −∂² log p / ∂f² depends on y and can be indefinite, so `hessian_sqrt` is that of its expectation,
    the Fisher information diag(e^-s, 1/2).
    """

    def check_outputs(self, outputs: int) -> None:
        if outputs < 2 or outputs % 2:
            raise InputError(
                f"HeteroscedasticGaussian() with {outputs} outputs; it needs M means, then M log variances."
            )

    def prepare(self, y: Any, f: Tensor) -> Tensor:
        check_pair(self, y, f)
        return real_targets(y, f, f.shape[1] // 2)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        mean, log_variance = self.split(f)
        z2 = (y - mean).square() * (-log_variance).exp()
        return (-0.5 * (z2 + log_variance) - _HALF_LOG_2PI).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        mean, log_variance = self.split(f)
        precision = (-log_variance).exp()
        return torch.cat([(y - mean) * precision, 0.5 * ((y - mean).square() * precision - 1)], -1)

    def hessian_sqrt(self, f: Tensor) -> Tensor:
        _, log_variance = self.split(f)
        root = (-0.5 * log_variance).exp()
        return torch.cat([root, torch.full_like(root, 0.5**0.5)], -1).diag_embed()

    def observe(self, f: Tensor) -> td.Distribution:
        mean, log_variance = self.split(f)
        return td.Independent(td.Normal(mean, (0.5 * log_variance).exp()), 1)

    def mean_of(self, f: Tensor) -> Tensor:
        return self.split(f)[0]

    def variance_of(self, f: Tensor) -> Tensor:
        return self.split(f)[1].exp()

    def split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances `[..., n, M]`; the latter clamped so that e^s and e^-s are finite."""
        mean, log_variance = f.chunk(2, -1)
        limit = exponent_limit(f.dtype)
        return mean, log_variance.clamp(-limit, limit)
