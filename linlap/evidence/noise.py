"""How well a Gaussian likelihood fits under other noise, and the likelihood that has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from linlap.curvature import Totals
from linlap.errors import InputError
from linlap.likelihoods import Gaussian, Likelihood

Noise = Literal["scalar", "output"]


@dataclass(frozen=True, eq=False)
class Fit:
    """log p(y | f) over the data where noise variances are those of the fit divided by β `[m]`:
    level + ½ Σ_c (numbers_c log β_c − β_c squares_c), with squares of residuals in units of the fit's noise."""

    level: float
    numbers: Tensor
    squares: Tensor

    @classmethod
    def fixed(cls, totals: Totals, device: torch.device) -> Fit:
        """No noise to change."""
        none = torch.zeros(0, dtype=torch.float64, device=device)
        return cls(totals.log_likelihood, none, none)

    @classmethod
    def common(cls, likelihood: Gaussian, totals: Totals, outputs: int, device: torch.device) -> Fit:
        """One factor for all outputs: squares follow from the likelihood under the fit's own noise."""
        scale = likelihood.scale(torch.zeros(outputs, dtype=torch.float64, device=device))
        level = -totals.count * float(scale.log().sum()) - 0.5 * totals.count * outputs * math.log(2 * math.pi)
        squares = scale.new_tensor([-2 * (totals.log_likelihood - level)]).clamp_min(0)
        return cls(level, scale.new_tensor([float(totals.count * outputs)]), squares)

    @classmethod
    def by_output(cls, likelihood: Gaussian, totals: Totals, squares: Tensor) -> Fit:
        """A factor an output, from sums of its squared residuals `[C]`."""
        scale = likelihood.scale(squares)
        shared = cls.common(likelihood, totals, len(squares), squares.device)
        return cls(shared.level, torch.full_like(squares, float(totals.count)), squares / scale.square())

    def log_likelihood(self, s: Tensor) -> float:
        """At logarithms s of β."""
        return self.level + 0.5 * float((self.numbers * s - self.squares * s.exp()).sum())


def under_noise(likelihood: Gaussian, factors: Tensor) -> Gaussian:
    """The likelihood whose noise variances are divided by β: one number if it was one and β is."""
    noise = torch.as_tensor(likelihood.noise, dtype=torch.float64, device=factors.device).detach()
    changed = noise * factors.rsqrt() if len(factors) > 1 or noise.ndim else noise * factors[0].rsqrt()
    return Gaussian(changed.tolist() if changed.ndim else float(changed))


def require_gaussian(likelihood: Likelihood, noise: Noise) -> Gaussian:
    if not isinstance(likelihood, Gaussian):
        raise InputError(
            f"noise={noise!r} with {likelihood}, which has no noise to choose; pass noise=None, or fit with "
            "ll.Gaussian(noise=...)."
        )
    return likelihood
