"""The law of f(x) and of p(y = 1 | x) at each x, under weights that are drawn, weighted, or Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.common.cells import Arrays
from linlap.types import Gaussian

INPUTS = torch.linspace(-8, 8, 161, dtype=torch.float64)
AT = 3.0
_PLACE = int((INPUTS - AT).abs().argmin())
LEVELS = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
BINS = 20


@dataclass(frozen=True)
class Law:
    """Quantiles of f `[levels, inputs]`, the mean of p(y = 1) `[inputs]`, and at x = 3 the share of p in each bin."""

    f: NDArray[np.float64]
    mean: NDArray[np.float64]
    shares: NDArray[np.float64]

    @classmethod
    def of_samples(cls, f: Tensor, weights: Tensor | None = None) -> Law:
        """Of samples `[k, inputs]`, with weights `[k]` that sum to one or all alike."""
        w = torch.full((len(f),), 1 / len(f), dtype=f.dtype) if weights is None else weights
        quantiles = torch.stack([_quantiles(column, w) for column in f.T], -1)
        p = torch.sigmoid(f)
        shares = torch.histogram(p[:, _PLACE].contiguous(), BINS, range=(0.0, 1.0), weight=w).hist
        return cls(quantiles.numpy(), (w @ p).numpy(), shares.numpy())

    @classmethod
    def of_gaussian(cls, law: Gaussian, mean: Tensor) -> Law:
        """Of f ~ N with variances `[inputs, 1]`, exactly."""
        normal = torch.distributions.Normal(law.mean.squeeze(-1), law.cov.reshape(-1).sqrt())
        inner = torch.logit(torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1])
        below = torch.distributions.Normal(normal.loc[_PLACE], normal.scale[_PLACE]).cdf(inner)
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        shares = torch.cat([ends[:1], below, ends[1:]]).diff()
        return cls(normal.icdf(LEVELS.unsqueeze(-1)).numpy(), mean.numpy(), shares.numpy())

    @property
    def p(self) -> NDArray[np.float64]:
        """Quantiles of p(y = 1 | x)."""
        return 1 / (1 + np.exp(-self.f))

    @property
    def modes(self) -> list[float]:
        """Where p at x = 3 piles up: tenths with more of it than their neighbours, and than 5 %, by their middles."""
        tenths = self.shares.reshape(10, -1).sum(1)
        around = np.pad(tenths, 1)
        top = (tenths > around[:-2]) & (tenths >= around[2:]) & (tenths > 0.05)
        return [float((place + 0.5) / 10) for place in np.flatnonzero(top)]

    @property
    def least_rise(self) -> float:
        """The least step of the mean from an input to the next, negative where it falls."""
        return float(np.diff(self.mean).min())

    def distance(self, other: Law) -> float:
        """Between the laws of p, mean over inputs: how far mass has to move (Wasserstein's distance)."""
        return float(np.abs(self.p - other.p).mean())

    def distance_of_means(self, other: Law) -> float:
        """Between the predictives p(y = 1 | x), mean over inputs."""
        return float(np.abs(self.mean - other.mean).mean())

    def arrays(self, name: str) -> Arrays:
        return {f"{name}.f": self.f, f"{name}.mean": self.mean, f"{name}.shares": self.shares}

    @classmethod
    def among(cls, arrays: Arrays, name: str) -> Law:
        return cls(arrays[f"{name}.f"], arrays[f"{name}.mean"], arrays[f"{name}.shares"])


def _quantiles(values: Tensor, weights: Tensor) -> Tensor:
    ordered, order = values.sort()
    below = weights[order].cumsum(0)
    return ordered[torch.searchsorted(below, LEVELS * below[-1]).clamp_max(len(values) - 1)]
