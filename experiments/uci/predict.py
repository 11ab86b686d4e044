"""Predictives of many networks at once: f̄ `[M, n, C]` such that p(y | f̄) is the average over samples."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.uci.problems import Splits
from experiments.uci.stack import Networks, chunks
from linlap.integrators import MonteCarlo
from linlap.likelihoods import ClassLikelihood
from linlap.network.memory import default_budget
from linlap.types import Gaussian

_LOG_INVERSE_TEMPERATURE = (-7.0, 7.0)
_HALVINGS = 50


def glm(likelihood: ClassLikelihood, law: Gaussian, samples: int) -> Tensor:
    """From the law of f `[M, n, …]`."""
    side_by_side = Gaussian(law.mean.flatten(0, 1), law.cov.flatten(0, 1))
    predictive = MonteCarlo(samples).predict(likelihood, side_by_side)
    return predictive.logits.reshape(law.mean.shape)


def bnn(likelihood: ClassLikelihood, networks: Networks, e: Tensor, x: Tensor) -> Tensor:
    """The networks themselves, with each of `e` `[M, S, P]` added to their weights."""
    samples, (count, n, d) = e.shape[1], x.shape
    wide = sum(p.shape[0] for name, p in networks.module.named_parameters() if name.endswith("bias"))
    each = 4.0 * count * (n * (2 * wide + d) + 2 * e.shape[2])
    f = [networks.sampled(e[:, part], x) for part in chunks(samples, each, default_budget(x.device) / 4)]
    return pooled(likelihood, torch.cat(f))


def tempered(splits: Splits, f: Tensor) -> Tensor:
    """f `[M, n, C]` at validation and test inputs, each network's divided by the temperature of least validation NLL.

    log p(y | b f) is concave in b = 1 / T, so that its derivative is brought to zero by halving.
    """
    y = splits.valid[1].repeat_interleave(len(f) // len(splits.valid[1]), 0)
    seen = f[:, : y.shape[1]].flatten(0, 1)
    labels = splits.likelihood.prepare(y.flatten(), seen)
    low, high = (f.new_full((len(f), 1, 1), edge) for edge in _LOG_INVERSE_TEMPERATURE)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        scaled = (middle.exp() * f[:, : y.shape[1]]).flatten(0, 1)
        slope = (splits.likelihood.residual(labels, scaled) * seen).view(len(f), -1).sum(-1)
        rises = (slope > 0).view(-1, 1, 1)
        low, high = torch.where(rises, middle, low), torch.where(rises, high, middle)
    return low.exp() * f


def pooled(likelihood: ClassLikelihood, f: Tensor) -> Tensor:
    """Of samples `[S, M, n, C]`."""
    return likelihood.pool(f.flatten(1, 2)).view(f.shape[1:])
