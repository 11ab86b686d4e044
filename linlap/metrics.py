"""How good predictive distributions are: floats from a torch Distribution over y, and y.

Many-label Bernoulli predictions count label by label: each (input, label) is one case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError, NotFiniteError


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram, one value a bin `[bins]`; confidence and accuracy of an empty bin are NaN."""

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def nll(predictive: td.Distribution, y: Tensor) -> float:
    """Mean over inputs of −log p(y), summed over outputs."""
    y = _targets(predictive, y)
    log_prob = predictive.log_prob(y)
    return float(-log_prob.reshape(len(y), -1).double().sum(-1).mean())


def accuracy(predictive: td.Distribution, y: Tensor) -> float:
    """Share of cases whose most probable class is right."""
    probabilities, classes = _cases(predictive, y, "accuracy")
    return float((probabilities.argmax(-1) == classes).double().mean())


def ece(predictive: td.Distribution, y: Tensor, bins: int = 10) -> float:
    """Expected calibration error Σ_b n_b/n |accuracy_b − confidence_b|; a binary p counts as (1 − p, p)."""
    curve = reliability(predictive, y, bins)
    gap = (curve.accuracy - curve.confidence).abs().nan_to_num(0.0)
    return float((curve.count * gap).sum() / curve.count.sum())


def reliability(predictive: td.Distribution, y: Tensor, bins: int = 10) -> Reliability:
    """Mean confidence (largest probability) and accuracy in equal bins of (0, 1], closed on the right."""
    if bins < 1:
        raise InputError(f"bins={bins}; pass at least one.")
    probabilities, classes = _cases(predictive, y, "calibration")
    confidence, guess = probabilities.max(-1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    place = torch.bucketize(confidence, edges[1:-1])
    right = (guess == classes).double()
    count = torch.bincount(place, minlength=bins).double()
    return Reliability(
        edges,
        torch.bincount(place, weights=confidence, minlength=bins) / count,
        torch.bincount(place, weights=right, minlength=bins) / count,
        count,
    )


def brier(predictive: td.Distribution, y: Tensor) -> float:
    """Mean squared error of probabilities: summed over classes (Categorical), or (p − y)² (Bernoulli)."""
    probabilities, classes = _cases(predictive, y, "the Brier score")
    hot = torch.nn.functional.one_hot(classes, probabilities.shape[-1])
    error = (probabilities - hot).square().sum(-1)
    return float(error.mean()) * (0.5 if isinstance(predictive, td.Bernoulli) else 1.0)


def rmse(predictive: td.Distribution, y: Tensor) -> float:
    """Root of the mean squared error of the predictive mean, over inputs and outputs."""
    _refuse_classes(predictive, "rmse", "brier")
    return float((predictive.mean - _targets(predictive, y)).double().square().mean().sqrt())


def crps(predictive: td.Distribution, y: Tensor, samples: int = 1000) -> float:
    """Continuous ranked probability score, mean over inputs and outputs, in units of y.

    Closed for normals, each output by itself; else from samples, whose seed is fixed.
    """
    _refuse_classes(predictive, "crps", "brier")
    y = _targets(predictive, y)
    base = predictive.base_dist if isinstance(predictive, td.Independent) else predictive
    if isinstance(base, (td.Normal, td.MultivariateNormal)):
        scale = predictive.variance.double().sqrt()
        return float(_normal_crps((y - predictive.mean).double() / scale, scale).mean())
    return float(_sample_crps(_fixed_samples(predictive, samples).double(), y.double()).mean())


def predictive_entropy(predictive: td.Distribution) -> Tensor:
    """Entropy in nats `[n]`, summed over outputs; for classes −Σ_c p_c log p_c of the averaged predictive."""
    try:
        entropy: Tensor = predictive.entropy()
    except NotImplementedError as error:
        raise InputError(
            f"{_name(predictive)} has no closed entropy; score regression by predictive.variance.sum(-1)."
        ) from error
    return entropy.reshape(len(entropy), -1).sum(-1)


def ood_auc(inside: Tensor | td.Distribution, outside: Tensor | td.Distribution) -> float:
    """Area under the ROC for telling inputs from outside (positive) by larger scores; ties count one half.

    Pass scores `[n]`, or predictive distributions, which are scored by their entropy.
    """
    low, high = (_scores(side) for side in (inside, outside))
    _, place, count = torch.cat([low, high]).unique(return_inverse=True, return_counts=True)
    ranks = (count.cumsum(0) - 0.5 * (count - 1))[place].double()
    wins = ranks[len(low) :].sum() - 0.5 * len(high) * (len(high) + 1)
    return float(wins / (len(low) * len(high)))


def _scores(side: Tensor | td.Distribution) -> Tensor:
    scores = predictive_entropy(side) if isinstance(side, td.Distribution) else side
    if not isinstance(scores, Tensor) or scores.ndim != 1 or not len(scores):
        raise InputError("pass one score for each input, shape [n] with n ≥ 1, or a predictive distribution.")
    if torch.isnan(scores).any():
        raise NotFiniteError("NaN among the scores; ranks need numbers.")
    return scores.detach().double()


def _targets(predictive: td.Distribution, y: Tensor) -> Tensor:
    """y in the shape, dtype and on the device that predictive.log_prob takes; no broadcasting."""
    if not isinstance(predictive, td.Distribution):
        raise InputError(f"a {type(predictive).__name__} is no distribution; pass what predictive(x) gives.")
    if not isinstance(y, Tensor):
        raise InputError(f"y is a {type(y).__name__}, not a tensor; pass torch.as_tensor(y).")
    shape = predictive.batch_shape + predictive.event_shape
    if y.shape != shape and (y.shape == shape[:1] or y.shape == (*shape, 1)) and y.numel() == shape.numel():
        y = y.reshape(shape)
    if y.shape != shape or not y.ndim or not len(y):
        raise InputError(f"y has shape {tuple(y.shape)} for a predictive over {tuple(shape)}; pass one row an input.")
    if isinstance(predictive, td.Categorical):
        classes = predictive.logits.shape[-1]
        if y.is_floating_point() or (y < 0).any() or (y >= classes).any():
            raise InputError(f"classes must be integers 0 to {classes - 1}; y has dtype {y.dtype} or others.")
        return y.to(predictive.logits.device).long()
    if isinstance(predictive, td.Bernoulli):
        if not ((y == 0) | (y == 1)).all():
            raise InputError("labels of a Bernoulli predictive must be 0 or 1; other values in y.")
        return y.to(predictive.logits)
    if not torch.isfinite(y).all():
        raise NotFiniteError("NaN or infinite values in y.")
    return y.to(predictive.mean)


def _cases(predictive: td.Distribution, y: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Probabilities `[cases, classes]` in float64 and true classes `[cases]`."""
    if isinstance(predictive, td.Categorical):
        return predictive.probs.double(), _targets(predictive, y)
    if isinstance(predictive, td.Bernoulli):
        p = predictive.probs.double().reshape(-1)
        return torch.stack([1 - p, p], -1), _targets(predictive, y).long().reshape(-1)
    raise InputError(f"{what} needs classes; {_name(predictive)} has none. For regression: nll, rmse, crps.")


def _refuse_classes(predictive: td.Distribution, what: str, instead: str) -> None:
    if isinstance(predictive, (td.Categorical, td.Bernoulli)):
        raise InputError(f"{what} is for regression, not for {_name(predictive)}; use {instead}.")


def _name(predictive: td.Distribution) -> str:
    return f"a {type(predictive).__name__} distribution"


def _normal_crps(z: Tensor, scale: Tensor) -> Tensor:
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return scale * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def _fixed_samples(predictive: td.Distribution, samples: int) -> Tensor:
    """Samples from a fixed seed. Distributions only draw from the global generator; it is put back."""
    if samples < 2:
        raise InputError(f"samples={samples}; crps from samples needs at least 2.")
    device = predictive.mean.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return predictive.sample(torch.Size([samples]))


def _sample_crps(draws: Tensor, y: Tensor) -> Tensor:
    """E|X − y| − ½ E|X − X′| over draws `[S, …]`, the second over pairs of different draws, by sorting."""
    count = len(draws)
    rank = torch.arange(1, count + 1, dtype=draws.dtype, device=draws.device)
    weights = (2 * rank - count - 1) / (count * (count - 1))
    spread = torch.tensordot(weights, draws.sort(0).values, 1)
    return (draws - y).abs().mean(0) - spread
