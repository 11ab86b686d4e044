"""Counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError
from linlap.likelihoods.base import Likelihood, bounded_exp, check_pair, first, real_targets


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts with rate e^f, each output by itself."""

    def check_outputs(self, outputs: int) -> None:
        if outputs < 1:
            raise InputError("a network without outputs; Poisson() needs one output, the log rate, for each count.")

    def prepare(self, y: Any, f: Tensor) -> Tensor:
        check_pair(self, y, f)
        y = real_targets(y, f, f.shape[1])
        bad = (y < 0) | (y != y.round())
        if bad.any():
            raise InputError(f"{first(y, bad)}, not a count; pass whole numbers ≥ 0.")
        return y

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return (y * f - bounded_exp(f) - (y + 1).lgamma()).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return y - bounded_exp(f)

    def hessian_sqrt(self, f: Tensor) -> Tensor:
        return bounded_exp(f).sqrt().diag_embed()

    def observe(self, f: Tensor) -> td.Distribution:
        # a rate that underflowed to 0 would make every count but 0 impossible
        rate = bounded_exp(f).clamp_min(torch.finfo(f.dtype).tiny)
        return td.Independent(td.Poisson(rate), 1)

    def mean_of(self, f: Tensor) -> Tensor:
        return bounded_exp(f)

    def variance_of(self, f: Tensor) -> Tensor:
        return bounded_exp(f)
