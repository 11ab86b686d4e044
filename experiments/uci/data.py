"""Reads the sets: from a folder the user names, from scikit-learn, or from a cache that is filled by downloads."""

from __future__ import annotations

import os
import urllib.request
from io import StringIO
from pathlib import Path
from urllib.error import URLError

import numpy as np
from sklearn.datasets import load_digits

from experiments.uci.sets import PUBLIC, SETS, Set, Table
from linlap.errors import InputError

_SECONDS = 30  # without an answer


def load(name: str, folder: Path | None = None) -> Table:
    """Features, and in the last column the label 0, 1, …; of the `folder`'s file where one is named."""
    if name not in SETS:
        raise InputError(f"there is no set {name!r}; the sets are {', '.join(SETS)}.")
    known = SETS[name]
    if folder is not None:
        return known.checked(_read(folder / f"{name}.csv", known), f"{folder / name}.csv")
    if not known.files:
        digits = load_digits()
        return known.checked(np.column_stack([digits.data, digits.target]), "scikit-learn's set of digits")
    path = cache() / f"{name}.csv"
    if not path.exists():
        _write(path, known.checked(download(known), f"what {PUBLIC} holds"), known)
    return known.checked(_read(path, known), str(path))


def cache() -> Path:
    """Where downloaded sets lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linlap" / "uci"


def download(known: Set) -> Table:
    """The set from its public copy, with labels 0, 1, …"""
    parts = [[_fetched(f"{PUBLIC}/{file}", known) for file in part] for part in known.files]
    try:
        table = np.concatenate([np.column_stack(part) for part in parts])
    except ValueError as error:
        raise InputError(f"the files of {known.name} at {PUBLIC} do not fit together. {_advice(known)}") from error
    table[:, -1] = np.unique(table[:, -1], return_inverse=True)[1]
    return table


def _fetched(url: str, known: Set) -> Table:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            text = answer.read().decode()
    except (URLError, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{url} could not be had ({reason}). {_advice(known)}") from error
    return _parsed(text.replace(",", " "), None, url)


def _read(path: Path, known: Set) -> Table:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(f"{path} cannot be read ({why}). {_advice(known)}") from error
    return _parsed(text.partition("\n")[2], ",", str(path))


def _parsed(text: str, delimiter: str | None, origin: str) -> Table:
    if not text.strip():
        raise InputError(f"{origin} is empty: get it again.")
    try:
        return np.loadtxt(StringIO(text), delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise InputError(f"{origin} is not a table of numbers ({error}): get it again.") from error


def _write(path: Path, table: Table, known: Set) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    passing = path.with_suffix(f".{os.getpid()}.part")
    header = ",".join([*(f"x{i + 1}" for i in range(known.features)), "label"])
    np.savetxt(passing, table, fmt="%.17g", delimiter=",", header=header, comments="")
    passing.replace(path)


def _advice(known: Set) -> str:
    return (
        f"Pass --data FOLDER with a file {known.name}.csv: one line of names, then {known.rows} lines of "
        f"{known.features} features and a label 0 … {known.classes - 1}. Without --data it comes from {PUBLIC} and is "
        f"kept in {cache()}."
    )
