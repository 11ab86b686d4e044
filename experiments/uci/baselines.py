"""What the linear model is compared with: variational inference over the network, and ensembles of networks."""

from __future__ import annotations

from pathlib import Path

import torch

import linlap as ll
from experiments.common.cells import Measured, Tick
from experiments.uci.config import Config
from experiments.uci.predict import bnn, pooled
from experiments.uci.predictions import Predictions, scored
from experiments.uci.problems import Splits
from experiments.uci.stack import Networks, chunks, flat
from experiments.uci.training import Task, counted, fitted, stacked, tasks, trained
from linlap.network.memory import default_budget

_APART = 1000  # between the seeds of an ensemble's members


def mfvi(splits: Splits, network: str, config: Config, folder: Path, tick: Tick) -> Measured:
    """Independent Gaussians over the weights of the network itself, by Bayes-by-backprop."""
    models, data, precisions = stacked(splits, network, tasks(config))
    posteriors = ll.mfvi(
        models,
        data,
        splits.likelihood,
        precisions,
        steps=config.mfvi_steps,
        rate=config.mfvi_step_size,
        progress=counted(tick, f"variational inference over {len(models)} networks", config.mfvi_steps),
    )
    found = Predictions(splits, config)
    x = torch.cat([splits.valid[0], splits.test[0]], 1).repeat_interleave(len(config.precisions), 0)
    shape = models[0]
    generator = torch.Generator(x.device).manual_seed(0)
    each = 8.0 * config.samples * (2 * posteriors[0].network.size + 3 * x.shape[1] * splits.of.outputs)
    for part in chunks(len(models), each, default_budget(x.device)):
        tick(f"networks {part.start + 1}–{part.stop} of {len(models)}")
        mean = torch.stack([posterior.mean for posterior in posteriors[part]]).float()
        drawn = torch.stack([flat(posterior.sample(config.samples, generator)) for posterior in posteriors[part]])
        e = drawn.float() - mean.unsqueeze(1)
        found.add("mfvi", bnn(splits.likelihood, Networks(shape, mean), e, x[part]))
    return found.measured()


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
