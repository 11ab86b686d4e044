"""The trained networks of a set, over splits and δ; kept in a file, for the groups of methods that share them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import linlap as ll
from experiments.common.cells import Tick
from experiments.uci.config import Config
from experiments.uci.problems import Splits, network
from experiments.uci.stack import Networks

_TICKS = 20  # of the progress bar


@dataclass(frozen=True)
class Task:
    """One network to train: the place of its split, the seed of its first weights, δ."""

    row: int
    seed: int
    precision: float


def tasks(config: Config) -> list[Task]:
    """All δ of a split one after the other."""
    return [Task(row, seed, d) for row, seed in enumerate(config.splits) for d in config.precisions]


def stacked(
    splits: Splits, name: str, todo: Sequence[Task]
) -> tuple[list[nn.Module], list[tuple[Tensor, Tensor]], list[float]]:
    """Networks before training, the data of each, and their prior precisions."""
    x, y = splits.train
    models: list[nn.Module] = [network(name, splits.of, task.seed).to(x.device) for task in todo]
    data = [(x[row], y[row]) for row in range(len(x))]
    return models, [data[task.row] for task in todo], [task.precision for task in todo]


def trained(splits: Splits, name: str, config: Config, folder: Path, tick: Tick) -> Networks:
    """At their MAP weights, from the folder's file if it holds just these."""
    path = folder / f"{splits.of.name}-{name}.safetensors"
    settings = json.dumps([splits.of.checksum, name, config.splits, config.precisions, config.steps, config.step_size])
    theta = _read(path, settings)
    if theta is None:
        theta = fitted(splits, name, config, tasks(config), tick)
        _write(path, theta, settings)
    device = splits.train[0].device
    return Networks(network(name, splits.of, 0).to(device), theta.to(device))


def fitted(splits: Splits, name: str, config: Config, todo: Sequence[Task], tick: Tick) -> Tensor:
    """Weights `[M, P]` of networks trained side by side."""
    models, data, precisions = stacked(splits, name, todo)
    step = counted(tick, f"training {len(models)} networks", config.steps)
    found = ll.train_map(
        models, data, splits.likelihood, precisions, steps=config.steps, rate=config.step_size, progress=step
    )
    return torch.stack([_vector(model) for model in found])


def _vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def counted(tick: Tick, what: str, steps: int) -> Callable[[], None]:
    """What to call after each step; now and then it says how far it is."""
    done = itertools.count(1)

    def step() -> None:
        number = next(done)
        if number % max(1, steps // _TICKS) == 0:
            tick(f"{what}, {100 * number // steps} %")

    return step


def _read(path: Path, settings: str) -> Tensor | None:
    try:
        with safe_open(path, "pt") as file:
            return file.get_tensor("theta") if file.metadata() == {"settings": settings} else None
    except (OSError, SafetensorError):
        return None


def _write(path: Path, theta: Tensor, settings: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    passing = path.with_suffix(".part")
    save_file({"theta": theta.cpu().contiguous()}, passing, {"settings": settings})
    passing.replace(path)
