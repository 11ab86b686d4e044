"""Each bar beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import bars
from benchmarks.cells import dig
from benchmarks.peers import DEFAULT_PEER, FLOORS, GP_PEERS, OURS, PEERS

Record = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What a bar asks of a quantity, and what was found; None where it could not be measured."""

    what: str
    quantity: str
    wanted: float
    found: float | None
    more_is_better: bool

    @property
    def reached(self) -> bool:
        if self.found is None:
            return False
        return self.found >= self.wanted if self.more_is_better else self.found <= self.wanted


def verdicts(records: list[Record], others: Mapping[str, Record]) -> list[Verdict]:
    """All bars, in the order of bars.py; `others` are the records that are a file each, by its name."""
    by_kind = {(r["what"], r.get("problem"), r.get("structure")): r for r in records}
    found: list[Verdict] = []
    for (problem, structure), latent in bars.LATENT.items():
        record = by_kind.get(("latent covariance", problem, structure), {})
        found += _of_latent(f"latent covariance, {problem} {structure}", latent, record)
    for (problem, structure), faster in bars.FIT.items():
        record = by_kind.get(("fit", problem, structure), {})
        for part, name in (("sums", "sums over the data"), ("ready", "ready to predict")):
            ratio = fastest(record, [peer.name for peer in PEERS], "time", part)
            found.append(Verdict(f"fit, {problem} {structure}", f"times faster: {name}", faster, ratio, True))
    for (problem, outputs), gp in bars.GP.items():
        record = by_kind.get(("gaussian process", problem, outputs), {})
        found += _of_gp(f"Gaussian process, {problem} {outputs}", gp, record)
    for outputs, large in bars.LARGE_GP.items():
        found += _of_large(outputs, large, records)
    many = by_kind.get(("many outputs", None, None), {})
    products = dig(many, "products", "Kron", "median")
    what = f"variances of {many.get('classes', 'many')} outputs, last layer Kron"
    found.append(Verdict(what, "times the layer's product", bars.MANY_OUTPUTS, products, False))
    found += _of_choices(others)
    ratio = dig(others["import"], "ratio", "median")
    return [*found, Verdict("import linlap", "times import torch", bars.IMPORT_RATIO, ratio, False)]


def _of_choices(others: Mapping[str, Record]) -> Iterator[Verdict]:
    """Choosing the prior, and refining."""
    evidence, validation, refinement = (others[name] for name in ("evidence", "validation", "refinement"))
    for run in ("Full", "Full, two threads"):
        ratio = dig(evidence, run, "times faster", "choice")
        yield Verdict(f"prior by the evidence, {run}, 4706 weights", "times faster", bars.EVIDENCE, ratio, True)
    for grid, wanted in bars.VALIDATION.items():
        ratio = dig(validation, "times one prediction", grid)
        yield Verdict(f"prior by validation, mlp Kron, {grid}", "times one prediction", wanted, ratio, False)
    ratio = dig(refinement, "spaces", "times faster than 250 steps over weights")
    yield Verdict("natural gradients, full, over outputs", "times over weights", bars.REFINEMENT, ratio, True)
    peak = dig(refinement, "scale", "peak_bytes")
    gib = None if peak is None else peak / 2**30
    yield Verdict("natural gradients, Kron, 3c3d", "GiB", bars.REFINEMENT_GIB, gib, False)
    before, after = (dig(refinement, "scale", f"negative_log_joint_{when}") for when in ("before", "after"))
    growth = None if before is None or after is None else after / before
    what = "negative log joint at the mean, times before"
    yield Verdict("natural gradients, Kron, 3c3d", what, bars.REFINEMENT_NLJ, growth, False)


def _of_latent(what: str, bar: bars.LatentBar, record: Record) -> Iterator[Verdict]:
    ratio = dig(record, "time", "times_ours", DEFAULT_PEER.name, "median")
    yield Verdict(what, "times faster", bar.faster, ratio, True)
    share = memory_ratio(record, [DEFAULT_PEER.name])
    yield Verdict(what, "peer's memory in ours", 1 / bar.memory_share, share, True)
    floors = dig(record, "time", "floors", OURS.name, FLOORS[0].name, "median")
    yield Verdict(what, "floors", bar.floors, floors, False)


def _of_gp(what: str, bar: bars.GPBar, record: Record) -> Iterator[Verdict]:
    peers = [peer.name for peer in GP_PEERS]
    yield Verdict(what, "times faster: fit", bar.fit, fastest(record, peers, *GP_TIMES["fit"]), True)
    yield Verdict(what, "times faster: prediction", bar.latent, fastest(record, peers, *GP_TIMES["latent"]), True)
    if bar.memory_share is not None:
        for part, name in (("fit", "fit"), ("latent", "prediction")):
            share = memory_ratio(record.get(part, {}), peers)
            yield Verdict(what, f"peer's memory in ours: {name}", 1 / bar.memory_share, share, True)


def _of_large(outputs: str, bar: bars.LargeGPBar, records: list[Record]) -> Iterator[Verdict]:
    runs = [r for record in records if record["what"] == "large gaussian process" for r in record["runs"]]
    run = next((r for r in runs if r["outputs"] == outputs), None)
    what = f"large Gaussian process, {outputs}"
    seconds = run["fit_seconds"] + run["predict_seconds"] if run else None
    yield Verdict(what, "seconds", bar.seconds, seconds, False)
    yield Verdict(what, "GiB", bar.gib, run["peak_bytes"] / 2**30 if run else None, False)


GP_TIMES = {"fit": ("fit", "time", "ready"), "latent": ("latent", "time")}


def fastest(record: Record, peers: list[str], *keys: str) -> float | None:
    """How many times our seconds the fastest of the peers takes."""
    ratios = [dig(record, *keys, "times_ours", name, "median") for name in peers]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def memory_ratio(record: Record, peers: list[str]) -> float | None:
    """Extra memory of the most frugal of the peers in times of ours."""
    ours = dig(record, "extra_memory", OURS.name, "bytes")
    theirs = [dig(record, "extra_memory", name, "bytes") for name in peers]
    least = min((size for size in theirs if size is not None), default=None)
    return None if ours is None or least is None else least / max(ours, 1)
