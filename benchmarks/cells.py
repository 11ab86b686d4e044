"""Cells of tables, and tables of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import bars
from benchmarks.peers import DEFAULT_PEER

MIB = 2**20
_NONE = "-"


def titled(title: str, records: list[dict[str, Any]], row_of: Callable[[dict[str, Any]], dict[str, str]]) -> str:
    """A table with a row for each record; nothing where there is none."""
    if not records:
        return ""
    rows = [row_of(record) for record in records]
    header = list(rows[0])
    cells = [header, *([row[name] for name in header] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([title, lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def start(record: dict[str, Any]) -> dict[str, str]:
    """What every row begins with."""
    return {"problem": record["problem"], "structure": record["structure"], "inputs": str(record["inputs"])}


def short(name: str) -> str:
    """A backend of the peer without the peer's name."""
    return name.removeprefix(f"{DEFAULT_PEER.name}-")


def dig(record: dict[str, Any], *keys: str) -> Any:
    """The value under nested keys; None where one is missing."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value: float | None, scale: float = 1.0) -> str:
    """Three digits, or all before the point."""
    return _NONE if value is None else f"{value * scale:,.3g}" if value * scale < 100 else f"{value * scale:,.0f}"


def judged(value: float | None, bar: float | None, more_is_better: bool) -> str:
    """A value with its bar in brackets, and ! where it is missed."""
    if bar is None:
        return number(value)
    missed = value is not None and (value < bar if more_is_better else value > bar)
    return f"{number(value)} ({number(bar)}){'!' if missed else ' '}"


def deviation(value: float | None) -> str:
    """A relative error, with ! where it is more than rounding."""
    return _NONE if value is None else f"{value:.0e}{'!' if value > bars.AGREEMENT else ' '}"
