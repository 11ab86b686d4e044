"""The 5300 points: of a file the user names, or made here."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor

from linlap.errors import InputError
from linlap.report import datasets

POINTS = 5300
BANANA, CRESCENTS = "banana", "crescents"
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Points:
    """Inputs `[n, 2]` and labels `[n]`, and where they come from."""

    name: str
    x: Tensor
    y: Tensor

    def split(self, seed: int, size: int) -> tuple[Pair, Pair, Pair]:
        """`size` points to train with, as many to choose with, the rest to test with; stratified by their labels."""
        rest, y = np.arange(len(self.y)), self.y.numpy()
        train, rest = train_test_split(rest, train_size=size, random_state=seed, stratify=y)
        valid, test = train_test_split(rest, train_size=size, random_state=seed, stratify=y[rest])
        first, second, third = ((self.x[rows], self.y[rows]) for rows in (train, valid, test))
        return first, second, third


def points(folder: Path | None) -> Points:
    """Of the folder's banana.csv; without a folder, two crescents that look much like it."""
    if folder is not None:
        table = torch.as_tensor(_read(folder / "banana.csv"))
        return Points(BANANA, table[:, :2].float(), table[:, 2].float())
    made = datasets.banana(seed=0, train=POINTS, test=0)
    return Points(CRESCENTS, made.x, made.y)


def _read(path: Path) -> NDArray[np.float64]:
    wanted = f"a line of names, then {POINTS} lines of two numbers and a label 0 or 1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file; its shape says so
            table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except OSError as error:
        why = error.strerror or "it is not there"
        raise InputError(
            f"{path} cannot be read ({why}). Pass --data FOLDER with that file: {wanted}; or leave --data out for "
            "points that are made."
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); it must be {wanted}.") from error
    if table.shape != (POINTS, 3) or not np.isfinite(table).all() or not np.isin(table[:, 2], (0, 1)).all():
        shape = " × ".join(map(str, table.shape))
        raise InputError(f"{path} holds {shape} numbers or other labels; it must be {wanted}.")
    return table
