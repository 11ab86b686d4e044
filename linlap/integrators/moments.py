"""Mean of y and the two parts of its variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.likelihoods import ClassLikelihood, Likelihood
from linlap.likelihoods.base import sample_log_weights


@dataclass(frozen=True)
class Moments:
    """Moments of y (of indicators, for classes) `[n, M]`; entropies in nats `[n]`, None without classes.

    aleatoric = E_f Var[y | f], epistemic = Var_f E[y | f]; they add up to `total` (law of total variance).
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    expected_entropy: Tensor | None = None
    predictive_entropy: Tensor | None = None

    @property
    def total(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @staticmethod
    def cat(parts: Sequence[Moments]) -> Moments:
        """The moments of several groups of inputs, in order."""

        def joined(entropies: list[Tensor | None]) -> Tensor | None:
            known = [entropy for entropy in entropies if entropy is not None]
            return torch.cat(known) if known else None

        return Moments(
            torch.cat([part.mean for part in parts]),
            torch.cat([part.aleatoric for part in parts]),
            torch.cat([part.epistemic for part in parts]),
            joined([part.expected_entropy for part in parts]),
            joined([part.predictive_entropy for part in parts]),
        )


def moments_of_samples(likelihood: Likelihood, f_samples: Tensor, log_weights: Tensor | None = None) -> Moments:
    """Moments of Σ_s w_s p(y | f_s), f_samples `[S, n, C]`; log_weights broadcasts to it, equal if None.

    They are exactly those of the mixture: the spread over samples is divided by S, not S − 1.
    """
    weights = sample_log_weights(f_samples, log_weights).exp()
    means = likelihood.mean_of(f_samples)
    mean = (weights * means).sum(0)
    aleatoric = (weights * likelihood.variance_of(f_samples)).sum(0)
    epistemic = (weights * (means - mean).square()).sum(0)
    if not isinstance(likelihood, ClassLikelihood):
        return Moments(mean, aleatoric, epistemic)
    # output by output where weights differ between outputs, which only likelihoods of separate outputs allow
    if weights.shape[-1] == 1:
        expected = (weights[..., 0] * likelihood.entropy_of(f_samples)).sum(0)
    else:
        expected = (weights * likelihood.entropy_of(f_samples.unsqueeze(-1))).sum((0, -1))
    predictive = likelihood.entropy_of(likelihood.pool(f_samples, log_weights))
    return Moments(mean, aleatoric, epistemic, expected, predictive)
