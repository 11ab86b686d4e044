"""One of C classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, log_softmax, softmax
from torch import distributions as td
from torch.nn.functional import one_hot

from linlap.errors import InputError
from linlap.likelihoods.base import ClassLikelihood, check_pair, first, sample_log_weights


@dataclass(frozen=True)
class Categorical(ClassLikelihood):
    """p(y = c | f) = softmax(f)_c; labels are integers 0 … C − 1."""

    def check_outputs(self, outputs: int) -> None:
        if outputs < 2:
            raise InputError(f"Categorical() with {outputs} outputs; for two classes from one output use Bernoulli().")

    def prepare(self, y: Any, f: Tensor) -> Tensor:
        check_pair(self, y, f)
        classes = f.shape[1]
        if y.ndim != 1:
            hint = "pass y.argmax(-1)" if y.shape == f.shape else "pass one class index for each input, shape [n]"
            raise InputError(f"y has shape {tuple(y.shape)} for outputs of shape {tuple(f.shape)}; {hint}.")
        if y.is_floating_point():
            bad = ~torch.isfinite(y) | (y != y.round())
            if bad.any():
                raise InputError(f"{first(y, bad)}, not a class; pass integers 0 to {classes - 1}.")
            raise InputError(f"y has dtype {y.dtype}; classes are integers: pass y.long().")
        y = y.to(f.device).long()
        bad = (y < 0) | (y >= classes)
        if bad.any():
            raise InputError(f"{first(y, bad)}; with {classes} outputs the classes are 0 to {classes - 1}.")
        return y

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        index = y.expand(f.shape[:-1]).unsqueeze(-1)
        return log_softmax(f, -1).gather(-1, index).squeeze(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return one_hot(y, f.shape[-1]).to(f) - softmax(f, -1)

    def hessian_sqrt(self, f: Tensor) -> Tensor:
        # L = diag(√p) − p √pᵀ squares to diag(p) − p pᵀ because √pᵀ√p = 1. Its null vector √p is reflected onto
        # the last axis, which then drops out: C − 1 columns do, and fitting takes a backward pass for each.
        log_p = log_softmax(f, -1)
        root = (0.5 * log_p).exp()
        columns = root.diag_embed() - log_p.exp().unsqueeze(-1) * root.unsqueeze(-2)
        mixed = root[..., :-1] / (1 + root[..., -1:])
        return columns[..., :-1] - columns[..., -1:] * mixed.unsqueeze(-2)

    def observe(self, f: Tensor) -> td.Distribution:
        return td.Categorical(logits=f)

    def mean_of(self, f: Tensor) -> Tensor:
        return softmax(f, -1)

    def variance_of(self, f: Tensor) -> Tensor:
        p = softmax(f, -1)
        return p * (1 - p)

    def entropy_of(self, f: Tensor) -> Tensor:
        log_p = log_softmax(f, -1)
        return -(log_p.exp() * log_p).sum(-1)

    def pool(self, f_samples: Tensor, log_weights: Tensor | None = None) -> Tensor:
        # Samples last: over a short last axis, as classes are, torch's softmax takes several times as long.
        f = f_samples.movedim(0, -1)
        if log_weights is None:
            pooled = softmax(f, 1).mean(-1)
        else:
            pooled = (softmax(f, 1) * log_weights.movedim(0, -1).exp()).sum(-1)
        # Averages of probabilities are as exact as those by logarithms, and quicker, unless they underflow.
        info = torch.finfo(f.dtype)
        log_p = pooled.clamp_min(info.tiny).log()
        if not pooled.numel() or pooled.min() >= info.tiny / info.eps:
            return log_p
        small = (pooled < info.tiny / info.eps).any(-1)
        weights = sample_log_weights(f_samples, log_weights).movedim(0, -1).expand(len(f), 1, -1)
        log_p[small] = (log_softmax(f[small], 1) + weights[small]).logsumexp(-1)
        return log_p
