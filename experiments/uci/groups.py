"""Groups of methods that are measured together: what they do, what decides their numbers, how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.common.cells import Measured, Tick
from experiments.uci import baselines, linearised
from experiments.uci.case import Case
from experiments.uci.config import Config
from experiments.uci.cost import Cost
from experiments.uci.problems import Splits
from experiments.uci.training import trained

_TRAINING = ("steps", "step_size")


@dataclass(frozen=True)
class Group:
    """`measure` takes splits, the network's name, settings, the folder of trained weights, and `tick`."""

    measure: Callable[[Splits, str, Config, Path, Tick], Measured]
    settings: tuple[str, ...]
    seconds: Callable[[Cost], float]


def _at_map(method: Callable[[Case, Tick], Measured]) -> Callable[[Splits, str, Config, Path, Tick], Measured]:
    """For methods that begin at the trained networks."""

    def measure(splits: Splits, network: str, config: Config, folder: Path, tick: Tick) -> Measured:
        return method(Case(splits, trained(splits, network, config, folder, tick), config), tick)

    return measure


GROUPS = {
    "laplace": Group(
        _at_map(linearised.laplace),
        (*_TRAINING, "samples"),
        lambda cost: cost.training(cost.count, cost.config.steps) + cost.fit(cost.config.samples) + cost.networks(),
    ),
    "mfvi": Group(
        baselines.mfvi,
        ("mfvi_steps", "mfvi_step_size", "samples"),
        lambda cost: cost.training(cost.count, 2 * cost.config.mfvi_steps) + cost.networks(),
    ),
    "refine_full": Group(
        _at_map(linearised.refine_full),
        (*_TRAINING, "samples", "refine_steps", "refine_rate"),
        Cost.refinement,
    ),
    "refine_diag": Group(
        _at_map(linearised.refine_diagonal),
        (*_TRAINING, "samples", "refine_steps", "refine_diagonal_rate"),
        Cost.diagonal_refinement,
    ),
    "gp": Group(_at_map(linearised.processes), (*_TRAINING, "samples"), lambda cost: 2 * cost.fit()),
    "ensemble": Group(
        baselines.ensemble,
        (*_TRAINING, "members"),
        lambda cost: cost.training((cost.config.members - 1) * len(cost.config.splits), cost.config.steps),
    ),
}
