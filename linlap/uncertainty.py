"""How much of a prediction's uncertainty is noise, and how much is not knowing the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from linlap.errors import InputError
from linlap.integrators import Moments
from linlap.types import Inputs


class HasMoments(Protocol):
    """What `uncertainty` needs of a predictive."""

    def moments(self, x: Inputs) -> Moments: ...


@dataclass(frozen=True)
class Uncertainty:
    """Variances of y `[n, M]` (for classes, of each class indicator); total = aleatoric + epistemic.

    For classes also, in nats `[n]`: the entropy of the prediction and its mutual information with the
    weights, the epistemic part of it. Without classes both are None.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    entropy: Tensor | None = None
    mutual_information: Tensor | None = None


def uncertainty(predictive: HasMoments, x: Inputs) -> Uncertainty:
    """Total, aleatoric and epistemic uncertainty of predictive(x)."""
    if not hasattr(predictive, "moments"):
        raise InputError(f"a {type(predictive).__name__} has no moments; pass a predictive such as GLM(posterior).")
    moments = predictive.moments(x)
    entropy = moments.predictive_entropy
    information = None
    if entropy is not None and moments.expected_entropy is not None:
        information = (entropy - moments.expected_entropy).clamp_min(0)
    return Uncertainty(moments.total, moments.aleatoric, moments.epistemic, entropy, information)
