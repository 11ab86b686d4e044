"""The eight sets: their sizes, a checksum of each, and where its files lie in public."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linlap.errors import InputError

Table = NDArray[np.float64]
# The repository of the paper's experiments, at the commit that brought its data: the same rows in the same order.
PUBLIC = "https://raw.githubusercontent.com/AlexImmer/BNN-predictions/7285a08e56d3778212919d811aa000ca8f0d4211/data"


@dataclass(frozen=True)
class Set:
    """One set. `files` are the parts of the public copy, each features and labels: two files, or one for both."""

    name: str
    rows: int
    features: int
    classes: int
    checksum: str
    files: tuple[tuple[str, ...], ...] = ()

    @property
    def outputs(self) -> int:
        """Of a network: two classes take one."""
        return 1 if self.classes == 2 else self.classes

    def checked(self, table: Table, origin: str) -> Table:
        """The table `[rows, features + 1]`, labels last, if it is this set."""
        wanted = (self.rows, self.features + 1)
        if table.shape != wanted:
            raise InputError(
                f"{origin} has {table.shape[0]} rows of {table.shape[1]} numbers; {self.name} has {wanted[0]} of "
                f"{wanted[1]}, the label last. The file is damaged or another one: get it again."
            )
        if not np.isfinite(table).all():
            row, column = np.argwhere(~np.isfinite(table))[0]
            raise InputError(f"{origin} has {table[row, column]} in row {row + 1}, column {column + 1}: get it again.")
        found = checksum(table)
        if found != self.checksum:
            raise InputError(
                f"{origin} has the size of {self.name} but other numbers, or its rows in another order: their checksum "
                f"is {found[:12]}…, not {self.checksum[:12]}…. Its splits would not be the paper's: get it again."
            )
        return table


def checksum(table: Table) -> str:
    """SHA-256 of the numbers to six digits, row by row, however a file writes them."""
    lines = (",".join(f"{value + 0.0:.6g}" for value in row) for row in table)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _presplit(folder: str, name: str) -> tuple[tuple[str, ...], ...]:
    """The first rows and the others, each features and labels."""
    return tuple((f"{folder}/{name}_X_{part}.csv", f"{folder}/{name}_y_{part}.csv") for part in ("tr", "te"))


def _apart(folder: str) -> tuple[tuple[str, ...], ...]:
    return ((f"{folder}/X.txt", f"{folder}/Y.txt"),)


_KNOWN = (
    Set(
        *("australian", 690, 14, 2, "6463f1141809ddf1a5f33ff47081e37b5495a79b835b81244bee2fcf553ed758"),
        _presplit("australian_presplit", "australian_scale"),
    ),
    Set(
        *("cancer", 683, 10, 2, "45d00899936dc5803207438e7ba85d868056fdb35e3d33b6100086717e40c24b"),
        _presplit("breast_cancer_scale_presplit", "breast_cancer_scale"),
    ),
    Set(
        *("ionosphere", 351, 34, 2, "61b6ec6a4b146fc10704c433795889fa6098d3bdbc789ee451607d3beef47778"),
        (("ionosphere/ionosphere.data",),),
    ),
    Set(*("glass", 214, 9, 6, "03350dc80d284154f3eed271d700f2f845cd11b87a8b30f8ee00561d5ad4df0a"), _apart("glass")),
    Set(
        *("vehicle", 846, 18, 4, "3d2af2c77421cb5ef7b429d1148411e38b6620d99a72dd459667177f21684fe0"), _apart("vehicle")
    ),
    Set(
        *("waveform", 1000, 21, 3, "efdb61b183a7fb4cd021dab8dc56322c87f0f6b47508189185e816bb2c8e7026"),
        _apart("waveform"),
    ),
    Set("digits", 1797, 64, 10, "63e266dec490e75ef6c22e592ba8e509f5cd6d9536f6a3c84547c959afa1f82a"),
    Set(
        *("satellite", 6435, 36, 6, "f87eb2a6f59b3f85d8018b2e9e59bbf49a2f641f3f2e07e959f88c165ef42606"),
        _apart("satellite"),
    ),
)
SETS = {known.name: known for known in _KNOWN}
