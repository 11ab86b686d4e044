"""Tables of what was measured beside what is to be reached, from the JSON files of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars
from benchmarks.peers import DEFAULT_PEER, FLOORS, OURS, PEERS

_MIB = 2**20
_NONE = "-"


def tables(paths: Sequence[Path]) -> str:
    """One table each of latent covariances, fits and correctness; then the import and what failed."""
    records = [json.loads(path.read_text()) for path in paths if path.name.count("-")]
    latent = [r for r in records if r["what"] == "latent covariance" and not r["tiny"]]
    fits = [r for r in records if r["what"] == "fit"]
    parts = [
        _titled(
            "Latent covariance of one batch, float32 (each bar in brackets; ! where it is missed)",
            latent,
            _latent_row,
        ),
        _titled("Floors of that batch, milliseconds", latent, _floor_row),
        _titled(
            "Fits, float32 (bar in brackets): seconds of the sums over data / until ready to predict", fits, _fit_row
        ),
        _titled("Relative error in float64 to the reference", _one_a_problem(records), _agreement_row),
    ]
    parts += [_import_line(json.loads(path.read_text())) for path in paths if path.name == "import.json"]
    parts.append(_failures(records))
    return "\n\n".join(part for part in parts if part)


def _titled(title: str, records: list[dict[str, Any]], row_of: Any) -> str:
    if not records:
        return ""
    rows = [row_of(record) for record in records]
    header = list(rows[0])
    cells = [header, *([row[name] for name in header] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([title, lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _start(record: dict[str, Any]) -> dict[str, str]:
    return {"problem": record["problem"], "structure": record["structure"], "inputs": str(record["inputs"])}


def _latent_row(record: dict[str, Any]) -> dict[str, str]:
    time, memory = record["time"], record["extra_memory"]
    bar = bars.LATENT.get((record["problem"], record["structure"]))
    faster = _dig(time, "times_ours", DEFAULT_PEER.name, "median")
    floors = _dig(time, "floors", OURS.name, FLOORS[0].name, "median")
    our_bytes, peer_bytes = (_dig(memory, name, "bytes") for name in (OURS.name, DEFAULT_PEER.name))
    share = peer_bytes / max(our_bytes, 1) if our_bytes is not None and peer_bytes is not None else None
    error = _dig(record, "agreement", "relative_error", OURS.name)
    return _start(record) | {
        "linlap ms": _number(_dig(time, "seconds", OURS.name, "median"), 1e3),
        "peer ms": _number(_dig(time, "seconds", DEFAULT_PEER.name, "median"), 1e3),
        "times faster": _judged(faster, bar.faster if bar else None, more_is_better=True),
        "linlap MiB": _number(our_bytes, 1 / _MIB),
        "peer MiB": _number(peer_bytes, 1 / _MIB),
        "memory 1/": _judged(share, 1 / bar.memory_share if bar else None, more_is_better=True),
        "floors": _judged(floors, bar.floors if bar else None, more_is_better=False),
        "float64 error": _error(error),
    }


def _floor_row(record: dict[str, Any]) -> dict[str, str]:
    time = record["time"]
    row = _start(record)
    for floor in FLOORS:
        row[floor.name] = _number(_dig(time, "seconds", floor.name, "median"), 1e3)
    for name in (OURS.name, DEFAULT_PEER.name):
        shown = [_number(_dig(time, "floors", name, floor.name, "median")) for floor in FLOORS]
        row[f"{name} in each"] = " / ".join(shown)
    return row


def _fit_row(record: dict[str, Any]) -> dict[str, str]:
    time, memory = record["time"], record["extra_memory"]
    row = _start(record)
    for name in (OURS.name, *(peer.name for peer in PEERS)):
        seconds = [_number(_dig(time, part, "seconds", name, "median")) for part in ("sums", "ready")]
        row[f"{_short(name)} s"] = " / ".join(seconds)
        row[f"{_short(name)} MiB"] = _number(_dig(memory, name, "bytes"), 1 / _MIB)
    bar = bars.FIT.get((record["problem"], record["structure"]))
    for part in ("sums", "ready"):
        ratios = [_dig(time, part, "times_ours", peer.name, "median") for peer in PEERS]
        fastest = min((value for value in ratios if value is not None), default=None)
        row[f"{part}: times faster"] = _judged(fastest, bar, more_is_better=True)
    return row


def _agreement_row(record: dict[str, Any]) -> dict[str, str]:
    found = record["agreement"]
    row = _start(record) | {"reference": found["reference"]}
    for name in (OURS.name, *(peer.name for peer in PEERS)):
        error = "reference" if name == found["reference"] else _error(found["relative_error"].get(name))
        row[_short(name)] = "failed" if name in found["failed"] else error
    exact = _dig(found, "relative_error to oracle, exact biases", OURS.name)
    del row["inputs"]
    return row | {f"{OURS.name} to oracle with exact biases": _error(exact)}


def _short(name: str) -> str:
    return name.removeprefix(f"{DEFAULT_PEER.name}-")


def _one_a_problem(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fits check every backend, latent covariances perhaps one: keep the fuller of the two."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: len(r["agreement"]["relative_error"])):
        best[record["problem"], record["structure"]] = record
    return list(best.values())


def _import_line(record: dict[str, Any]) -> str:
    if "failed" in record:
        return f"import linlap: failed: {record['failed']}"
    seconds, quotient = record["seconds"], record["ratio"]["median"]
    return (
        f"import linlap {seconds['linlap']['median']:.2f} s, torch {seconds['torch']['median']:.2f} s: "
        f"{_judged(quotient, bars.IMPORT_RATIO, more_is_better=False)} times"
    )


def _failures(records: list[dict[str, Any]]) -> str:
    lines = [
        f"  {record['problem']} {record['structure']} {record['what']}: {name}: {why}"
        for record in records
        for name, why in (record["agreement"]["failed"] | record.get("failed", {})).items()
    ]
    return "\n".join(["Failed, and why:", *lines]) if lines else ""


def _dig(record: dict[str, Any], *keys: str) -> Any:
    """The value under nested keys; None where one is missing."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _number(value: float | None, scale: float = 1.0) -> str:
    return _NONE if value is None else f"{value * scale:,.3g}" if value * scale < 100 else f"{value * scale:,.0f}"


def _judged(value: float | None, bar: float | None, more_is_better: bool) -> str:
    if bar is None:
        return _number(value)
    missed = value is not None and (value < bar if more_is_better else value > bar)
    return f"{_number(value)} ({_number(bar)}){'!' if missed else ' '}"


def _error(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0e}{'!' if value > bars.AGREEMENT else ' '}"
