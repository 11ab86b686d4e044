"""Two classes from one output, or many independent labels from as many outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import logsigmoid

from linlap.errors import InputError
from linlap.likelihoods.base import ClassLikelihood, check_pair, first, real_targets, sample_log_weights


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """p(y = 1 | f) = sigmoid(f) for each output by itself.

    Distributions over many labels are their marginals: what the labels share through f is not in them.
    """

    def check_outputs(self, outputs: int) -> None:
        if outputs < 1:
            raise InputError("a network without outputs; Bernoulli() needs one output for each label.")

    def prepare(self, y: Any, f: Tensor) -> Tensor:
        check_pair(self, y, f)
        y = real_targets(y, f, f.shape[1])
        bad = (y != 0) & (y != 1)
        if bad.any():
            hint = (
                "pass (y + 1) / 2" if (y.abs() == 1).all() else "pass labels 0 and 1 (several classes: Categorical())"
            )
            raise InputError(f"{first(y, bad)}, neither 0 nor 1; {hint}.")
        return y

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return (y * logsigmoid(f) + (1 - y) * logsigmoid(-f)).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return y * torch.sigmoid(-f) - (1 - y) * torch.sigmoid(f)

    def hessian_sqrt(self, f: Tensor) -> Tensor:
        return (0.5 * (logsigmoid(f) + logsigmoid(-f))).exp().diag_embed()

    def observe(self, f: Tensor) -> td.Distribution:
        return td.Bernoulli(logits=f.squeeze(-1) if f.shape[-1] == 1 else f)

    def mean_of(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def variance_of(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f) * torch.sigmoid(-f)

    def entropy_of(self, f: Tensor) -> Tensor:
        return -(torch.sigmoid(f) * logsigmoid(f) + torch.sigmoid(-f) * logsigmoid(-f)).sum(-1)

    def pool(self, f_samples: Tensor, log_weights: Tensor | None = None) -> Tensor:
        weights = sample_log_weights(f_samples, log_weights)
        yes = (logsigmoid(f_samples) + weights).logsumexp(0)
        no = (logsigmoid(-f_samples) + weights).logsumexp(0)
        return yes - no
