"""Predictive distributions of several batches as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributions as td

from linlap.errors import InputError

_PARAMETERS: dict[type[td.Distribution], tuple[str, ...]] = {
    td.Bernoulli: ("logits",),
    td.Categorical: ("logits",),
    td.MultivariateNormal: ("loc", "scale_tril"),
    td.NegativeBinomial: ("total_count", "logits"),
    td.Normal: ("loc", "scale"),
    td.Poisson: ("rate",),
}


def joined(parts: Sequence[Any]) -> Any:
    """One distribution over the inputs of all parts, which are distributions of one kind."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, td.Independent):
        return td.Independent(joined([part.base_dist for part in parts]), first.reinterpreted_batch_ndims)
    if isinstance(first, td.MixtureSameFamily):
        mixing = joined([part.mixture_distribution for part in parts])
        return td.MixtureSameFamily(mixing, joined([part.component_distribution for part in parts]))
    names = next((names for kind, names in _PARAMETERS.items() if isinstance(first, kind)), None)
    if names is None:
        raise InputError(
            f"predictions of several batches cannot be put together: a {type(first).__name__} is not known here. Pass "
            "data=(X, y) and a batch_size that takes them in one."
        )
    return type(first)(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})
