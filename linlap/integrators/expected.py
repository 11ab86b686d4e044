"""E[log p(y | f)] under a Gaussian over f: what a variational bound asks of a likelihood."""

from __future__ import annotations

import math
from functools import cache, singledispatch

import numpy as np
import torch
from torch import Tensor

from linlap.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson
from linlap.linalg import psd_sqrt
from linlap.types import Gaussian as Law

_NODES = 64
_DRAWS = 256


@singledispatch
def expected_log_prob(likelihood: Likelihood, y: Tensor, law: Law, problems: int = 1) -> Tensor:
    """E[log p(y | f)] `[n]` for f ~ law, `cov` `[n, C, C]`: closed, by quadrature, or else by fixed samples.

    Samples come in pairs about the mean and from one seed, so that two laws close to each other are compared by the
    same noise; so are several problems of equally many inputs, one after the other.
    """
    n, c = law.mean.shape
    generator = torch.Generator(law.mean.device).manual_seed(0)
    noise = torch.randn(
        _DRAWS // 2, n // problems, c, generator=generator, dtype=law.mean.dtype, device=law.mean.device
    )
    noise = noise.repeat(1, problems, 1)
    half = law.mean + (noise.transpose(0, 1) @ psd_sqrt(law.cov).mT).transpose(0, 1)
    return torch.stack([likelihood.log_prob(y, f) for f in (half, 2 * law.mean - half)]).mean((0, 1))


@expected_log_prob.register
def _(likelihood: Gaussian, y: Tensor, law: Law, problems: int = 1) -> Tensor:
    spread = (law.variance / likelihood.scale(law.mean).square()).sum(-1)
    return likelihood.log_prob(y, law.mean) - 0.5 * spread


@expected_log_prob.register
def _(likelihood: Poisson, y: Tensor, law: Law, problems: int = 1) -> Tensor:
    # The mean of e^f is that of a mean moved by half the variance; y f is linear.
    moved = law.mean + 0.5 * law.variance
    return likelihood.log_prob(y, moved) - 0.5 * (y * law.variance).sum(-1)


@expected_log_prob.register
def _(likelihood: Bernoulli, y: Tensor, law: Law, problems: int = 1) -> Tensor:
    nodes, weights = (torch.from_numpy(part).to(law.mean) for part in _hermite(_NODES))
    f = law.mean + nodes.view(-1, 1, 1) * law.variance.clamp_min(0).sqrt()
    return (weights.view(-1, 1) * likelihood.log_prob(y, f)).sum(0)


@cache
def _hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for standard normal averages."""
    nodes, weights = np.polynomial.hermite.hermgauss(count)
    return nodes * math.sqrt(2), weights / math.sqrt(math.pi)
