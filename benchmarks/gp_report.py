"""Tables of Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import bars
from benchmarks.cells import MIB, dig, judged, number, short, titled
from benchmarks.peers import GP_PEERS, OURS
from benchmarks.verdicts import GP_TIMES, fastest, memory_ratio

Row = Callable[[dict[str, Any]], dict[str, str]]


def gp_tables(records: list[dict[str, Any]], agreement_row: Row) -> list[str]:
    """Fits, latent covariances, correctness, and what a large one takes."""
    compared = [r for r in records if r["what"] == "gaussian process"]
    timed = [r for r in compared if "latent" in r]
    return [
        titled("Gaussian process, float32: fit until ready to predict", timed, partial(_row, "fit")),
        titled("Gaussian process, float32: latent covariance", timed, partial(_row, "latent")),
        titled(
            "Gaussian process: relative error in float64 to the oracle",
            [r for r in compared if "agreement" in r],
            agreement_row,
        ),
        *(titled(_large_title(r), r["runs"], _large_row) for r in records if r["what"] == "large gaussian process"),
    ]


def _row(part: str, record: dict[str, Any]) -> dict[str, str]:
    bar = bars.GP.get((record["problem"], record["structure"]))
    peers = [peer.name for peer in GP_PEERS]
    row = {name: str(record[key]) for name, key in _COLUMNS[part].items()}
    for name in (OURS.name, *peers):
        row[f"{short(name)} ms"] = number(dig(record, *GP_TIMES[part], "seconds", name, "median"), 1e3)
    row["times faster"] = judged(fastest(record, peers, *GP_TIMES[part]), getattr(bar, part, None), more_is_better=True)
    for name in (OURS.name, *peers):
        row[f"{short(name)} MiB"] = number(dig(record, part, "extra_memory", name, "bytes"), 1 / MIB)
    wanted = bar.memory_share if bar else None
    row["memory 1/"] = judged(memory_ratio(record[part], peers), 1 / wanted if wanted else None, more_is_better=True)
    return row


_COLUMNS = {
    "fit": {"problem": "problem", "outputs": "structure", "data": "data"},
    "latent": {"problem": "problem", "outputs": "structure", "data": "data", "inputs": "inputs"},
}


def _large_title(record: dict[str, Any]) -> str:
    asked = f"{record['inputs']} predictions, {record['threads']} threads"
    return f"Gaussian process of {record['data']} data, {asked}, {record['title']}"


def _large_row(run: dict[str, Any]) -> dict[str, str]:
    bar, seconds = bars.LARGE_GP[run["outputs"]], run["fit_seconds"] + run["predict_seconds"]
    return {
        "outputs": run["outputs"],
        "fit s": number(run["fit_seconds"]),
        "predict s": number(run["predict_seconds"]),
        "together s": judged(seconds, bar.seconds, more_is_better=False),
        "peak GiB": judged(run["peak_bytes"] / 2**30, bar.gib, more_is_better=False),
    }
