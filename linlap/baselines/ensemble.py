"""Deep ensembles: networks trained from different starts, averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from linlap.baselines.ascent import Rate, Tick
from linlap.baselines.stacks import same_rest
from linlap.baselines.train import AnyPrior, train_map
from linlap.errors import InputError
from linlap.fit import check_kinds
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.posteriors.drawn import SamplePosterior


def ensemble(
    models: Sequence[nn.Module],
    data: Any,
    likelihood: Likelihood,
    prior: AnyPrior = 1.0,
    *,
    steps: int | None = 10_000,
    rate: Rate = 1e-3,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | Tick = True,
) -> SamplePosterior:
    """The members of an ensemble as draws of a posterior: each model trained on all the data, by `ll.train_map`.

    What makes members differ are the weights that they start from, so initialise each with a seed of its own.
    `steps=None` takes models as they are, trained already. `ll.BNN` averages the members' predictions.
    """
    if not isinstance(models, list | tuple) or not models:
        raise InputError(
            f"models is {models!r}; pass a list of networks of one architecture, each with initial weights of its own."
        )
    for model in models:
        check_kinds(model, likelihood)
    if steps is not None:
        options: dict[str, Any] = {"steps": steps, "rate": rate, "batch_size": batch_size, "seed": seed}
        models = train_map(models, [data] * len(models), likelihood, prior, **options, progress=progress)
    members = [Network(model) for model in models]
    first = members[0]
    for index, member in enumerate(members):
        if repr(member.model) != repr(first.model) or member.shapes != first.shapes or not same_rest(first, member):
            raise InputError(
                f"models[{index}] is of another architecture than models[0], or has other frozen weights or buffers; "
                "members may differ only in the weights that are trained."
            )
    return SamplePosterior(first, likelihood, torch.stack([member.vector() for member in members]))
