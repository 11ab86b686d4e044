"""Tables of what was measured beside what is to be reached, from the JSON files of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, many_outputs
from benchmarks.cells import MIB, deviation, dig, judged, number, short, start, titled
from benchmarks.gp_report import gp_tables
from benchmarks.peers import DEFAULT_PEER, FLOORS, GP_PEERS, OURS, OUTPUTS, PEERS
from benchmarks.verdicts import fastest, memory_ratio


def tables(paths: Sequence[Path]) -> str:
    """Every table of these files, one after the other."""
    return "\n\n".join(parts(paths))


def load(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Records of problems, from those of the files that hold one."""
    return [json.loads(path.read_text()) for path in paths if path.name.count("-")]


def parts(paths: Sequence[Path]) -> list[str]:
    """One table each of latent covariances, fits and correctness; Gaussian processes; the import and what failed."""
    every = load(paths)
    gps = [r for r in every if r["what"].endswith("gaussian process")]
    records = [r for r in every if r["what"] in ("latent covariance", "fit")]
    latent = [r for r in records if r["what"] == "latent covariance" and not r["tiny"]]
    fits = [r for r in records if r["what"] == "fit"]
    found = [
        titled(
            "Latent covariance of one batch, float32 (each bar in brackets; ! where it is missed)",
            latent,
            _latent_row,
        ),
        titled("Floors of that batch, milliseconds", latent, _floor_row),
        titled(
            "Fits, float32 (bar in brackets): seconds of the sums over data / until ready to predict", fits, _fit_row
        ),
        titled("Relative error in float64 to the reference", _one_a_problem(records), _agreement_row),
        *gp_tables(gps, _agreement_row),
    ]
    found += [many_outputs.table(r) for r in every if r["what"] == "many outputs"]
    found += [_import_line(json.loads(path.read_text())) for path in paths if path.name == "import.json"]
    found.append(_failures(every))
    return [part for part in found if part]


def _latent_row(record: dict[str, Any]) -> dict[str, str]:
    time, memory = record["time"], record["extra_memory"]
    bar = bars.LATENT.get((record["problem"], record["structure"]))
    faster = dig(time, "times_ours", DEFAULT_PEER.name, "median")
    floors = dig(time, "floors", OURS.name, FLOORS[0].name, "median")
    our_bytes, peer_bytes = (dig(memory, name, "bytes") for name in (OURS.name, DEFAULT_PEER.name))
    share = memory_ratio(record, [DEFAULT_PEER.name])
    found = dig(record, "agreement", "relative_error", OURS.name)
    return start(record) | {
        "linlap ms": number(dig(time, "seconds", OURS.name, "median"), 1e3),
        "peer ms": number(dig(time, "seconds", DEFAULT_PEER.name, "median"), 1e3),
        "times faster": judged(faster, bar.faster if bar else None, more_is_better=True),
        "linlap MiB": number(our_bytes, 1 / MIB),
        "peer MiB": number(peer_bytes, 1 / MIB),
        "memory 1/": judged(share, 1 / bar.memory_share if bar else None, more_is_better=True),
        "floors": judged(floors, bar.floors if bar else None, more_is_better=False),
        "float64 error": deviation(found),
    }


def _floor_row(record: dict[str, Any]) -> dict[str, str]:
    time = record["time"]
    row = start(record)
    for floor in FLOORS:
        row[floor.name] = number(dig(time, "seconds", floor.name, "median"), 1e3)
    for name in (OURS.name, DEFAULT_PEER.name):
        shown = [number(dig(time, "floors", name, floor.name, "median")) for floor in FLOORS]
        row[f"{name} in each"] = " / ".join(shown)
    return row


def _fit_row(record: dict[str, Any]) -> dict[str, str]:
    time, memory = record["time"], record["extra_memory"]
    row = start(record)
    for name in (OURS.name, *(peer.name for peer in PEERS)):
        seconds = [number(dig(time, part, "seconds", name, "median")) for part in ("sums", "ready")]
        row[f"{short(name)} s"] = " / ".join(seconds)
        row[f"{short(name)} MiB"] = number(dig(memory, name, "bytes"), 1 / MIB)
    bar = bars.FIT.get((record["problem"], record["structure"]))
    for part in ("sums", "ready"):
        ratio = fastest(record, [peer.name for peer in PEERS], "time", part)
        row[f"{part}: times faster"] = judged(ratio, bar, more_is_better=True)
    return row


def _agreement_row(record: dict[str, Any]) -> dict[str, str]:
    found = record["agreement"]
    row = start(record) | {"reference": found["reference"]}
    for name in (OURS.name, *(peer.name for peer in PEERS)):
        shown = "reference" if name == found["reference"] else deviation(found["relative_error"].get(name))
        row[short(name)] = "failed" if name in found["failed"] else shown
    del row["inputs"]
    if record["structure"] in OUTPUTS:
        diagonal = dig(found, "relative_error to oracle, diagonal Λ", GP_PEERS[0].name)
        return row | {f"{short(GP_PEERS[0].name)} to oracle with the diagonal of Λ": deviation(diagonal)}
    exact = dig(found, "relative_error to oracle, exact biases", OURS.name)
    return row | {f"{OURS.name} to oracle with exact biases": deviation(exact)}


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
        f"{judged(quotient, bars.IMPORT_RATIO, more_is_better=False)} times"
    )


def _failures(records: list[dict[str, Any]]) -> str:
    lines = [
        f"  {record['problem']} {record['structure']} {record['what']}: {name}: {why}"
        for record in records
        for name, why in (record.get("agreement", {}).get("failed", {}) | record.get("failed", {})).items()
    ]
    return "\n".join(["Failed, and why:", *lines]) if lines else ""
