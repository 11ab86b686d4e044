"""Scores that should be larger on inputs unlike the training data, and how well they tell them apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError
from linlap.metrics import ood_auc, predictive_entropy
from linlap.uncertainty import Uncertainty

__all__ = ["lack_of_confidence", "mutual_information", "ood_auc", "predictive_entropy", "variance_score"]


def lack_of_confidence(predictive: td.Distribution) -> Tensor:
    """1 − the largest class probability `[n]`; over many labels, the mean of theirs."""
    if isinstance(predictive, td.Categorical):
        return 1 - predictive.probs.amax(-1)
    if isinstance(predictive, td.Bernoulli):
        doubt = torch.minimum(predictive.probs, 1 - predictive.probs)
        return doubt.reshape(len(doubt), -1).mean(-1)
    raise InputError(f"a {type(predictive).__name__} distribution has no classes; use ood.variance_score.")


def variance_score(predictive: td.Distribution) -> Tensor:
    """Predictive variance `[n]`, summed over outputs: for regression and counts."""
    if isinstance(predictive, td.Categorical):
        raise InputError("the variance of a class index means nothing; use ood.predictive_entropy.")
    variance = predictive.variance
    return variance.reshape(len(variance), -1).sum(-1)


def mutual_information(parts: Uncertainty) -> Tensor:
    """The epistemic share of the entropy `[n]`, from `uncertainty(predictive, x)`."""
    if parts.mutual_information is None:
        raise InputError("mutual information is known for classes only; score by parts.epistemic.sum(-1).")
    return parts.mutual_information
