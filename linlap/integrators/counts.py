"""A negative binomial that tends to the Poisson without losing its digits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributions as td

_LARGE = 16.0


class NegativeBinomial(td.NegativeBinomial):
    """As torch's, but its log_prob stays exact when total_count is so large that Γ(r + y) and Γ(r) cancel."""

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logsigmoid = torch.nn.functional.logsigmoid
        count = self.total_count
        log_unnormalised = count * logsigmoid(-self.logits) + value * logsigmoid(self.logits)
        return log_unnormalised + log_gamma_ratio(count, value) - torch.lgamma(value + 1)


def log_gamma_ratio(r: Tensor, y: Tensor) -> Tensor:
    """log Γ(r + y) − log Γ(r); by the terms of Stirling's series where r is large."""
    large = r > _LARGE
    safe = torch.where(large, r, torch.full_like(r, _LARGE))
    ratio = (safe + y - 0.5) * torch.log1p(y / safe) + y * (safe.log() - 1)
    series = ratio + _stirling_tail(safe + y) - _stirling_tail(safe)
    return torch.where(large, series, torch.lgamma(r + y) - torch.lgamma(r))


def _stirling_tail(z: Tensor) -> Tensor:
    """log Γ(z) − [(z − ½) log z − z + ½ log 2π], to 1e-12 from 16 on."""
    inverse = 1 / z
    square = inverse.square()
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
