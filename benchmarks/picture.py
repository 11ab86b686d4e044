"""`python -m benchmarks.picture`: draw docs/pictures/speed.png from results/*.json. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.cells import number
from benchmarks.comparisons import Comparison, comparisons
from benchmarks.report import load
from benchmarks.run import RESULTS
from linlap.plotting import COLOURS, DARK, FAINT, STYLE

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "speed.png"
_MIB = 2**20
_GAP = 1.3  # rows left empty between groups, for their titles


def picture(found: list[Comparison]) -> Figure:
    """Two columns, seconds and extra memory, both logarithmic; a row for each comparison, from us to the peer."""
    places = _places(found)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.6, 0.29 * max(places) + 1.4), layout="constrained")
        times, memory = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
        _dumbbells(times, found, places, lambda row: (row.ours, row.peer, row.times))
        _dumbbells(
            memory,
            found,
            places,
            lambda row: (
                None if row.our_bytes is None else row.our_bytes / _MIB,
                None if row.peer_bytes is None else row.peer_bytes / _MIB,
                row.share,
            ),
        )
        floors = [(place, row.floor) for place, row in zip(places, found, strict=True) if row.floor is not None]
        times.plot(
            [floor for _, floor in floors],
            [place for place, _ in floors],
            linestyle="",
            marker="|",
            markersize=11,
            markeredgewidth=1.6,
            color=DARK,
            label="floor: a forward and C backward passes",
        )
        times.set(xlabel="seconds", ylim=(max(places) + 0.8, min(places) - 1.6))
        memory.set(xlabel="extra memory, MiB")
        times.set_yticks(places, labels=[f"{row.problem} {row.kind}, {row.inputs}" for row in found])
        _group_titles(times, found, places)
        handles, labels = times.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _places(found: list[Comparison]) -> list[float]:
    """Rows from the top, with a gap before each group."""
    places: list[float] = []
    for index, row in enumerate(found):
        step = 0.0 if not places else 1.0 if found[index - 1].group == row.group else 1.0 + _GAP
        places.append(places[-1] + step if places else 0.0)
    return places


def _dumbbells(
    axis: Axes,
    found: list[Comparison],
    places: list[float],
    values: Callable[[Comparison], tuple[float | None, float | None, float | None]],
) -> None:
    pairs = [(place, *values(row)) for place, row in zip(places, found, strict=True)]
    for place, ours, peer, ratio in pairs:
        if ours is None or peer is None:
            continue
        axis.plot([ours, peer], [place, place], color=FAINT, linewidth=1.2, zorder=1)
        if ratio is not None:
            axis.annotate(
                f"{number(ratio)}×",
                (max(ours, peer), place),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=DARK,
            )
    for index, (name, marker) in enumerate((("linlap", "o"), ("laplace-torch", "^"))):
        known = [(pair[index + 1], pair[0]) for pair in pairs if pair[index + 1] is not None]
        axis.plot(
            *zip(*known, strict=True),
            linestyle="",
            marker=marker,
            markersize=7,
            color=COLOURS[index],
            label=name,
            zorder=2,
        )
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(low, high * (high / low) ** 0.09)  # room for the ratios
    axis.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _group_titles(axis: Axes, found: list[Comparison], places: list[float]) -> None:
    seen: set[str] = set()
    for row, place in zip(found, places, strict=True):
        if row.group not in seen:
            axis.annotate(
                row.group[0].upper() + row.group[1:],
                (0, place - 0.95),
                xycoords=("axes fraction", "data"),
                fontsize=10.5,
                fontweight="bold",
                va="center",
            )
        seen.add(row.group)


if __name__ == "__main__":
    matplotlib.use("Agg")
    picture(comparisons(load(sorted(RESULTS.glob("*.json"))))).savefig(OUT)
