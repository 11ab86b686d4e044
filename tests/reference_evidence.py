"""The log evidence by dense matrices as a function of logarithms of precisions and noises, and its maximum by scipy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from tests import reference
from tests.networks.truth import Truth
from tests.structures import Oracle

BOUNDS = (1e-6, 1e6)


@dataclass(frozen=True)
class Dense:
    """The evidence of a structure, of which `precision` is the oracle's word, at u `[k]`, logarithms of precisions, and
    s `[m]`, logarithms of factors on the noise's inverse variance."""

    truth: Truth
    precision: Oracle
    over: str
    noise: str | None

    @property
    def k(self) -> int:
        return {"scalar": 1, "layer": len(self.truth.names), "weight": len(self.truth.theta)}[self.over]

    @property
    def m(self) -> int:
        return {None: 0, "scalar": 1, "output": self.truth.case.outputs}[self.noise]

    def prior(self, u: Tensor) -> Any:
        if self.over == "layer":
            return dict(zip(self.truth.names, u.exp(), strict=True))
        return u.exp() if self.over == "weight" else u.exp()[0]

    def value(self, x: Tensor) -> Tensor:
        """log p(D), differentiable."""
        truth, prior = self.truth, self.prior(x[: self.k])
        options = dict(truth.options)
        if self.noise:
            root = (0.5 * x[self.k :]).exp()
            options["noise"] = torch.as_tensor(options["noise"], dtype=torch.float64) / root
            outer = root.expand(truth.case.outputs)
            truth = replace(truth, lam=truth.lam * outer.unsqueeze(0).unsqueeze(-1) * outer)
        fit = reference.log_prob(truth.law.oracle, truth.y, truth.f, **options).sum()
        return reference.log_evidence(fit, truth.theta, self.precision(truth, prior), truth.prior(prior))

    def maximum(self) -> float:
        """Its largest value, by a method of another kind than the library's."""
        with_slope = self.over == "weight"

        def loss(x: np.ndarray) -> Any:
            point = torch.tensor(x, requires_grad=with_slope)
            value = -self.value(point)
            if not with_slope:
                return float(value)
            value.backward()
            assert point.grad is not None
            return float(value), point.grad.numpy()

        limits = [tuple(np.log(BOUNDS))] * (self.k + self.m)
        found = minimize(loss, np.zeros(len(limits)), jac=with_slope or None, bounds=limits, options={"ftol": 1e-14})
        return -float(found.fun)


def at(evidence: Dense, posterior: Any) -> Tensor:
    """A posterior's precisions and noise as a point of the oracle's."""
    prior, truth = posterior.prior.precision, evidence.truth
    values = [float(prior[name]) for name in truth.names] if evidence.over == "layer" else prior
    u = torch.as_tensor(values, dtype=torch.float64).reshape(-1).log()
    if not evidence.noise:
        return u
    before = torch.as_tensor(truth.options["noise"], dtype=torch.float64).expand(truth.case.outputs)
    now = torch.as_tensor(posterior.likelihood.noise, dtype=torch.float64).expand(truth.case.outputs)
    s = 2 * (before / now).log()
    return torch.cat([u, s if evidence.noise == "output" else s[:1]])
