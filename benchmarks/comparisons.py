"""Us and the peer side by side: one line for each quantity that was timed, for pages and the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks import bars
from benchmarks.cells import dig
from benchmarks.peers import DEFAULT_PEER, FLOORS, GP_PEERS, OURS, PEERS
from benchmarks.verdicts import GP_TIMES, fastest, memory_ratio

Record = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Seconds and bytes of ours and of the peer: its default backend for latent covariances, the fastest and the most
    frugal elsewhere. `times` is the median of quotients within a round; `floors` our seconds in floors."""

    group: str
    problem: str
    kind: str
    inputs: int
    ours: float | None
    peer: float | None
    times: float | None
    our_bytes: int | None
    peer_bytes: int | None
    share: float | None
    floor: float | None = None
    floors: float | None = None


def comparisons(records: list[Record]) -> list[Comparison]:
    """By group, problems in the order of their bars."""
    found = [
        *(_weights(r, "latent covariance", ("time",), [DEFAULT_PEER.name]) for r in _of(records, "latent covariance")),
        *(_weights(r, "fit", ("time", "ready"), [peer.name for peer in PEERS]) for r in _of(records, "fit")),
        *(_gp(r, part) for part in GP_TIMES for r in _of(records, "gaussian process")),
    ]
    return [comparison for comparison in found if comparison.ours is not None]


def _of(records: list[Record], what: str) -> list[Record]:
    """Those that were timed."""
    order = list(dict.fromkeys(problem for problem, _ in (*bars.LATENT, *bars.GP)))
    timed = [r for r in records if r["what"] == what and not r["tiny"]]
    return sorted(timed, key=lambda r: order.index(r["problem"]) if r["problem"] in order else len(order))


def _weights(record: Record, group: str, timed: tuple[str, ...], peers: list[str]) -> Comparison:
    floors = dig(record, *timed, "floors", OURS.name, FLOORS[0].name, "median")
    floor = dig(record, *timed, "seconds", FLOORS[0].name, "median")
    return _comparison(group, record, record["inputs"], record, timed, peers, floor, floors)


def _gp(record: Record, part: str) -> Comparison:
    peers, inputs = [peer.name for peer in GP_PEERS], record["data" if part == "fit" else "inputs"]
    group = "Gaussian process: fit" if part == "fit" else "Gaussian process: prediction"
    return _comparison(group, record, inputs, record[part], GP_TIMES[part][1:], peers)


def _comparison(
    group: str,
    record: Record,
    inputs: int,
    found: Record,
    timed: tuple[str, ...],
    peers: list[str],
    floor: float | None = None,
    floors: float | None = None,
) -> Comparison:
    seconds = {name: dig(found, *timed, "seconds", name, "median") for name in (OURS.name, *peers)}
    sizes = {name: dig(found, "extra_memory", name, "bytes") for name in (OURS.name, *peers)}
    return Comparison(
        *(group, record["problem"], record["structure"], inputs),
        *(seconds[OURS.name], _least([seconds[name] for name in peers]), fastest(found, peers, *timed)),
        *(sizes[OURS.name], _least([sizes[name] for name in peers]), memory_ratio(found, peers)),
        *(floor, floors),
    )


def _least(values: list[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)
