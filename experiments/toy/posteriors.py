"""The posteriors over (w, b): the exact one on a grid, and Gaussian ones at the MAP."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from experiments.toy.problem import LIKELIHOOD, PRECISION, X, Y, inputs, log_joint
from linlap import Full, Kron, Prior, laplace
from linlap.curvature import FullCurvature
from linlap.linalg import safe_eigh
from linlap.posteriors import WeightPosterior

LIMIT = 6.0
HESSIAN, GGN, DAMPENED, KRON, KRON_DAMPENED = "hessian", "ggn", "dampened", "kron", "kron_dampened"
GAUSSIAN = (HESSIAN, GGN, DAMPENED, KRON, KRON_DAMPENED)


def grid(points: int) -> tuple[Tensor, Tensor]:
    """The exact posterior: weights `[points², 2]` and their probabilities, which sum to one."""
    line = torch.linspace(-LIMIT, LIMIT, points, dtype=torch.float64)
    weights = torch.cartesian_prod(line, line)
    return weights, torch.softmax(log_joint(weights), 0)


def gaussian(name: str, model: nn.Module) -> WeightPosterior:
    """A Laplace posterior at the MAP, by name."""
    structure = {KRON: Kron(), KRON_DAMPENED: Kron(damping="sqrt")}.get(name, Full())
    posterior = laplace(model, (inputs(X), Y), LIKELIHOOD, structure, Prior(PRECISION), progress=False)
    if name == HESSIAN:
        return _with(posterior, true_hessian(model))
    if name == DAMPENED and isinstance(posterior.curvature, FullCurvature):
        return _with(posterior, dampened(posterior.curvature.matrix))
    return posterior


def true_hessian(model: nn.Module) -> Tensor:
    """−∇² log p(y | θ) `[2, 2]` at the model's weights."""

    def minus_log_likelihood(weight: Tensor) -> Tensor:
        f = torch.func.functional_call(model, {"layer.weight": weight}, (inputs(X),))
        return -LIKELIHOOD.log_prob(Y.unsqueeze(-1), f).sum()

    weight = model.get_parameter("layer.weight").detach()
    return torch.func.hessian(minus_log_likelihood)(weight).reshape(weight.numel(), -1)


def dampened(matrix: Tensor) -> Tensor:
    """The curvature that with δ added has the eigenvalues (√h + √δ)².

    Dampening makes h = qa into (q + √δ)(a + √δ). Which factors two single weights have is not said; these are the
    ones that dampening changes least.
    """
    values, vectors = safe_eigh(matrix, "curvature")
    roots = values.clamp_min(0).sqrt()
    return matrix + 2 * math.sqrt(PRECISION) * (vectors * roots) @ vectors.mT


def _with(posterior: WeightPosterior, matrix: Tensor) -> WeightPosterior:
    curvature = posterior.curvature
    return replace(posterior, curvature=FullCurvature(posterior.network.shapes, curvature.totals, matrix))
