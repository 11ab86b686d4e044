"""`python -m benchmarks.growth`: seconds and extra memory against N, P, C, the batch and M, linlap alone.

Everything but one size stays as in `BASE`; each point is a fresh process of one thread, float32. Written after each
point; draws docs/pictures/growth.png at the end, which needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import linlap as ll
from benchmarks import environment, networks
from benchmarks.cells import MIB
from benchmarks.measure import clock, extra_peak
from benchmarks.process import run_fresh, say
from benchmarks.run import RESULTS

OUT = RESULTS / "growth.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "growth.png"
_SECONDS = 1.0  # a point is repeated for about this long
_MOST = 9
_INPUTS = 64


@dataclass(frozen=True)
class Job:
    """A tanh network 64-width-width-classes, n data, a batch to predict for; for processes n is M."""

    what: str = "fit"
    n: int = 512
    width: int = 256
    classes: int = 10
    batch: int = 64

    @property
    def weights(self) -> int:
        return sum(p.numel() for p in self.model().parameters())

    def model(self) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return networks.mlp([_INPUTS, self.width, self.width, self.classes])

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(self.n, _INPUTS, generator=generator), torch.arange(self.n) % self.classes


BASE = Job()
_FIT, _COV, _VAR = "fit", "covariances", "variances"
_GP_FIT, _GP_COV = "independent", "coupled"
AXES: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {
    "data N": ("n", (256, 1024, 4096, 16384), (_FIT,)),
    "weights P": ("width", (64, 128, 256, 512, 1024), (_FIT, _COV)),
    "outputs C": ("classes", (2, 10, 40, 160, 640), (_COV, _VAR)),
    "batch": ("batch", (16, 64, 256, 1024, 4096), (_COV, _VAR)),
    "data of a process, M": ("n", (64, 128, 256, 512), (_GP_FIT, _GP_COV)),
}
_SAID = {
    _FIT: "Kron: fit, ready to predict",
    _COV: "Kron: covariances [n, C, C]",
    _VAR: "Kron: variances [n, C]",
    _GP_FIT: "Gaussian process, independent: fit and predictions",
    _GP_COV: "Gaussian process, coupled: fit and predictions",
}


def call(job: Job) -> Callable[[], object]:
    """What is measured, with everything before it done."""
    model, data, likelihood, prior = job.model(), job.data(), ll.Categorical(), ll.Prior(1.0)
    x = torch.randn(job.batch, _INPUTS, generator=torch.Generator().manual_seed(2))
    if job.what == _FIT:
        return lambda: ll.laplace(model, data, likelihood, ll.Kron(), prior, progress=False).prepare()
    if job.what in (_GP_FIT, _GP_COV):
        outputs: Any = job.what
        return lambda: ll.gaussian_process(
            model, data, likelihood, outputs=outputs, prior=prior, progress=False
        ).latent(x)
    few = tuple(part[:_INPUTS] for part in data)
    posterior = ll.laplace(model, few, likelihood, ll.Kron(), prior, seeds=10, progress=False).prepare()
    return lambda: posterior.latent(x, diagonal=job.what == _VAR)


def measure(job: Job) -> dict[str, Any]:
    """Extra memory of the first call, and the median of the seconds of some more."""
    work = call(job)
    memory = extra_peak(work)
    now, seconds = clock(), list[float]()
    while not seconds or (sum(seconds) < _SECONDS and len(seconds) < _MOST):
        start = now()
        work()
        seconds.append(now() - start)
    return {"seconds": median(seconds), "bytes": memory.bytes, "rounds": len(seconds)}


def points() -> list[tuple[str, int, Job]]:
    """(axis, size along it, job); a network's size is its weights."""
    found = []
    for axis, (name, sizes, kinds) in AXES.items():
        for size in sizes:
            jobs = [replace(BASE, what=what, **{name: size}) for what in kinds]
            found += [(axis, job.weights if name == "width" else size, job) for job in jobs]
    return found


def picture(record: dict[str, Any]) -> Any:
    """Seconds above, memory below, a column for each size; beside each line the power that its last step grows by."""
    import matplotlib
    from matplotlib.figure import Figure

    from linlap.plotting import STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(AXES), 6.4), layout="constrained")
        rows = figure.subplots(2, len(AXES), sharex="col", squeeze=False)
        for places, (key, scale, label) in zip(
            rows, (("seconds", 1, "seconds"), ("bytes", MIB, "extra MiB")), strict=True
        ):
            places[0].set_ylabel(label)
            for place, axis in zip(places, AXES, strict=True):
                _draw(place, [point for point in record["points"] if point["axis"] == axis], key, scale)
        for place, axis in zip(rows[1], AXES, strict=True):
            place.set_xlabel(axis)
        named = {}
        for place in rows[0]:
            handles, labels = place.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def _draw(place: Any, found: list[dict[str, Any]], key: str, scale: float) -> None:
    from linlap.plotting import COLOURS, MARKERS

    first = found[0]["what"]
    for number, (kind, said) in enumerate(_SAID.items()):
        line = [point for point in found if point["what"] == kind]
        if not line:
            continue
        sizes, values = [point["size"] for point in line], [max(point[key], 1e-9) / scale for point in line]
        colour = COLOURS[number]
        place.plot(sizes, values, color=colour, marker=MARKERS[number], linewidth=1.6, label=said)
        if len(line) > 1:
            place.annotate(
                f"{_slope(sizes, values):.1f}",
                (sizes[-1], values[-1]),
                xytext=(6, 6 if kind == first else -6),  # apart where two lines end together
                textcoords="offset points",
                va="center",
                color=colour,
                fontsize=9.5,
            )
    place.set(xscale="log", yscale="log")
    ticks = sorted({point["size"] for point in found})
    place.set_xticks(ticks, labels=[f"{tick:,}" if tick < 10_000 else f"{tick / 1000:,.0f}k" for tick in ticks])
    values = [point[key] / scale for point in found]
    middle, reach = math.sqrt(min(values) * max(values)), 2 * max(math.sqrt(max(values) / min(values)), math.sqrt(10))
    place.set_ylim(middle / reach, middle * reach)
    place.minorticks_off()
    place.margins(x=0.2)
    place.grid(color="#DDDDDD", linewidth=0.7)
    place.spines[["top", "right"]].set_visible(False)


def _slope(sizes: list[int], values: list[float]) -> float:
    """The power by which the last step grows."""
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def main() -> None:
    """Run the command line, or the one job that a fresh process was started for."""
    if len(sys.argv) == 3 and all(name.endswith(".json") for name in sys.argv[1:]):
        torch.set_num_threads(1)
        found = measure(Job(**json.loads(Path(sys.argv[1]).read_text())))
        Path(sys.argv[2]).write_text(json.dumps(found))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--picture", action="store_true", help="measure nothing, only draw")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if not given.picture:
        record = {"what": "growth", "base": asdict(BASE), "environment": environment.describe(1), "points": []}
        for axis, size, job in points():
            say(f"{axis} {size}: {job.what}")
            found = run_fresh("benchmarks.growth", asdict(job), threads=1)
            record["points"].append({"axis": axis, "size": size, "what": job.what} | found)
            given.out.write_text(json.dumps(record, indent=1) + "\n")
    picture(json.loads(given.out.read_text())).savefig(PICTURE)


if __name__ == "__main__":
    main()
