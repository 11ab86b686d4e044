"""What the linear model is compared with: variational inference over the network, and ensembles of networks."""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.common.cells import Measured, Tick
from experiments.uci.config import Config
from experiments.uci.predict import pooled
from experiments.uci.predictions import Predictions, scored
from experiments.uci.problems import Splits
from experiments.uci.stack import Networks
from experiments.uci.training import Task, fitted, trained

_APART = 1000  # between the seeds of an ensemble's members


def ensemble(splits: Splits, network: str, config: Config, folder: Path, tick: Tick) -> Measured:
    """Networks from other first weights, at the δ where the network alone is best on validation data."""
    first = trained(splits, network, config, folder, tick)
    x = torch.cat([splits.valid[0], splits.test[0]], 1)
    places = scored(splits, first.outputs(x.repeat_interleave(len(config.precisions), 0))).chosen()
    alone = torch.as_tensor(places, device=first.theta.device)
    own = first.theta.unflatten(0, (len(alone), -1))[torch.arange(len(alone), device=alone.device), alone]
    todo = [
        Task(row, seed + _APART * member, config.precisions[place])
        for member in range(1, config.members)
        for row, (seed, place) in enumerate(zip(config.splits, places, strict=True))
    ]
    others = fitted(splits, network, config, todo, tick).to(own)
    members = Networks(first.module, torch.cat([own, others]))
    f = members.outputs(x.repeat(config.members, 1, 1)).unflatten(0, (config.members, -1))
    found = Predictions(splits, config)
    found.add("ensemble", pooled(splits.likelihood, f))
    return found.measured()
