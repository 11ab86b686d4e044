"""Cells: the parts of an experiment that are measured one by one, each written when it is done, none measured twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from linlap.report.training import one_thread

Record = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
Tick = Callable[[str], None]


class IsCell(Protocol):
    """One part: a name for its file, and what it is about, in values that JSON can hold."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> dict[str, Any]: ...


Cell = TypeVar("Cell", bound=IsCell)


@dataclass(frozen=True)
class Measured:
    """What a cell found: rows, and arrays where there is something to draw or to go on from."""

    rows: list[dict[str, Any]]
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """A folder with a file for each finished cell, and a second one where it has arrays."""

    folder: Path

    def known(self, name: str, settings: dict[str, Any]) -> Record | None:
        """A cell that was finished under these very settings; a damaged file counts as none."""
        try:
            record: Record = json.loads(self._path(name).read_text(encoding="utf-8"))
            whole = "rows" in record and set(record.get("arrays", ())) <= self._names_of_arrays(name)
            return record if whole and record["config"] == as_json(settings) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, BadZipFile):
            return None

    def write(self, name: str, record: Record, arrays: Arrays) -> Record:
        """The arrays first: a cell whose record is there is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if arrays:
            passing = self.folder / f"{name}.npz.part"
            with passing.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            passing.replace(self._path(name).with_name(f"{name}.npz"))
            record = record | {"arrays": list(arrays)}
        write_record(self._path(name), record)
        return record

    def arrays(self, name: str) -> Arrays:
        """What a finished cell left besides its rows."""
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    def _names_of_arrays(self, name: str) -> set[str]:
        path = self.folder / f"{name}.npz"
        if not path.exists():
            return set()
        with np.load(path, allow_pickle=False) as file:  # whose list of names stands at its end
            return set(file.files)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def measured(
    cells: Sequence[Cell],
    settings: Callable[[Cell], dict[str, Any]],
    measure: Callable[[Cell, Tick], Measured],
    store: Store,
    *,
    fresh: bool = False,
    progress: bool = True,
) -> list[Record]:
    """The record of every cell, in their order; those known under the same settings are not measured again.

    `settings` gives what decides the cell's numbers; `measure` may tell its second argument what it does now.
    """
    records = []
    with one_thread(), tqdm(cells, unit="cell", disable=not progress) as bar:
        for cell in bar:
            record = None if fresh else store.known(cell.name, settings(cell))
            if record is None:
                record = _measure(cell, settings(cell), measure, store, bar)
            records.append(record)
    return records


def _measure(
    cell: Cell, settings: dict[str, Any], measure: Callable[[Cell, Tick], Measured], store: Store, bar: Any
) -> Record:
    wall, cpu = time.perf_counter(), time.process_time()
    found = measure(cell, lambda what: bar.set_postfix_str(f"{cell.name}: {what}"))
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    record = {"cell": cell.about, "config": as_json(settings), **spent, "rows": found.rows}
    return store.write(cell.name, record, found.arrays)


def counting(tick: Tick, what: str, every: int = 50) -> Callable[[], None]:
    """To be called after each step of something long: tells `tick` now and then how far it is."""
    done = count(1)

    def step() -> None:
        number = next(done)
        if number % every == 0:
            tick(f"{what} {number}")

    return step


def missing(
    cells: Iterable[Cell], settings: Callable[[Cell], dict[str, Any]], store: Store, *, fresh: bool = False
) -> list[Cell]:
    """The cells that `measured` would measure."""
    return [cell for cell in cells if fresh or store.known(cell.name, settings(cell)) is None]


def as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a file gives them back: tuples are lists."""
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read


def write_record(path: Path, record: Record) -> None:
    """Whole or not at all; of the rows one a line, so that changes can be read."""
    head = json.dumps({name: value for name, value in record.items() if name != "rows"}, indent=1, ensure_ascii=False)
    write_whole(path, f'{head[:-2]},\n "rows": {lines(record["rows"])}}}\n')


def lines(rows: Iterable[dict[str, Any]]) -> str:
    """A JSON list with one row a line."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"


def write_whole(path: Path, text: str) -> None:
    """Under a passing name first: at `path` lies all of it, or what lay there before."""
    passing = path.with_suffix(".part")
    passing.write_text(text, encoding="utf-8")
    passing.replace(path)
