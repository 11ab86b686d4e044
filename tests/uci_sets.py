"""Two small sets in place of the UCI experiment's, and its settings made small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.uci.config import Config
from experiments.uci.sets import SETS, Set, Table, checksum

CPU = torch.device("cpu")
TINY = Config(
    sets=("two", "three"),
    networks=("1x50_tanh",),
    splits=(3, 4),
    precisions=(0.1, 1.0),
    steps=30,
    mfvi_steps=20,
    samples=40,
    refine_steps=3,
    members=2,
)


def table(classes: int, rows: int = 60, features: int = 3) -> Table:
    generator = np.random.default_rng(classes)
    x = generator.normal(size=(rows, features)).round(4)
    return np.column_stack([x, np.digitize(x[:, 0] + 0.3 * x[:, 1], np.linspace(-0.8, 0.8, classes + 1)[1:-1])])


def known(name: str, classes: int, files: tuple[tuple[str, ...], ...] = (("none",),)) -> Set:
    made = table(classes)
    return Set(name, *made[:, :-1].shape, classes, checksum(made), files)


def write(path: Path, made: Table) -> None:
    np.savetxt(path, made, fmt="%.17g", delimiter=",", header="names", comments="")


def put(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Both sets in CSV files, and known to the experiment."""
    for name, classes in (("two", 2), ("three", 3)):
        patch.setitem(SETS, name, known(name, classes))
        write(folder / f"{name}.csv", table(classes))
