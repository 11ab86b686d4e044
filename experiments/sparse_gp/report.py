"""What the results say: tables in Markdown, and one picture."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.common.rows import Mean
from experiments.common.tables import NONE, origin, shown, titled
from experiments.sparse_gp.measure import EVERYTHING, FULL, MAP, ONE, PRIOR, SPARSE, SUBSET, TEMPERATURE
from experiments.sparse_gp.rows import CHOICES, NAMES, SCORES, Results, Setting, mean_of
from linlap.plotting import COLOURS, DARK, MARKERS, STYLE

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def write(result: dict[str, Any], tables_path: Path, picture_path: Path) -> None:
    """The tables and the picture, each to its place."""
    tables_path.write_text(tables(result), encoding="utf-8")
    picture_path.parent.mkdir(parents=True, exist_ok=True)
    picture(Results.of(result)).savefig(picture_path)


def insert(result: dict[str, Any], page: Path) -> None:
    """Put the tables of the bar's setting between the two marks of a page."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    found = Results.of(result)
    settings = [Setting(found.main.precision, "independent", choice) for choice in (PRIOR, TEMPERATURE, ONE)]
    parts = [
        verdicts(found),
        *(compared(found, setting) for setting in settings),
        approximation(found),
        _origin(found),
    ]
    page.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


def tables(result: dict[str, Any]) -> str:
    """Every table: how often the bar holds, each comparison, what is compared with, and how close the variances are."""
    found = Results.of(result)
    parts = [
        "# Gaussian processes on M inducing inputs: all data projected on them, or only those M",
        verdicts(found),
        alone(found),
        levels(found),
        approximation(found),
        *(compared(found, setting) for setting in found.settings()),
        _origin(found),
    ]
    return "\n\n".join(parts) + "\n"


# Tables


def verdicts(found: Results) -> str:
    """How often Sparse is at most Subset, in every setting; the bar's comes first."""
    rows = []
    for setting in found.settings():
        cells = [f"{setting.precision:g}", setting.outputs, CHOICES[setting.choice]]
        cells += ["{} of {}".format(*found.holds(setting, metric)) for metric in SCORES]
        chosen = setting.choice != ONE and setting.outputs == "independent"
        rows.append([*cells, "{} of {}".format(*found.at_the_end(setting)) if chosen else NONE])
    head = [
        "δ",
        "outputs",
        "factor",
        "NLL at most Subset's",
        "ECE at most Subset's",
        "chosen factors at the grid's end",
    ]
    return titled("How often Sparse(M) scores at most what Subset(M) does, in the mean over seeds", head, rows)


def compared(found: Results, setting: Setting) -> str:
    """Both methods side by side, with the difference seed by seed."""
    rows = []
    for network in found.networks:
        for size in found.sizes(network, setting):
            cells = [NAMES[network], str(size)]
            for metric in SCORES:
                both = [mean_of(found.of_method(network, setting, m, size, metric)) for m in (SUBSET, SPARSE)]
                difference = found.difference(network, setting, size, metric)
                cells += [*(shown(one) for one in both), shown(difference, sign=True)]
                cells.append("yes" if difference.mean <= 0 else "no")
            rows.append(cells)
    scored = [[f"{name} Subset", f"{name} Sparse", "Sparse − Subset", "at most?"] for name in ("NLL", "ECE")]
    title = f"δ = {setting.precision:g}, {setting.outputs} outputs, factor {CHOICES[setting.choice]}"
    return titled(title, ["network", "M", *scored[0], *scored[1]], rows)


def alone(found: Results) -> str:
    """The networks themselves under each δ: validation data say which δ is the main one."""
    rows = []
    for network in found.networks:
        for precision in sorted(found.config["precisions"]):
            setting = Setting(precision, "independent", ONE)
            metrics = ("valid_nll", "nll", "ece", "accuracy")
            scores = [mean_of(found.of_method(network, setting, MAP, None, metric)) for metric in metrics]
            rows.append([NAMES[network], f"{precision:g}", *map(shown, scores)])
    head = ["network", "δ", "NLL on validation data", "NLL", "ECE", "accuracy"]
    return titled("The networks alone (MAP)", head, rows)


def levels(found: Results) -> str:
    """The exact posteriors."""
    rows = []
    for network in found.networks:
        for method, outputs in ((EVERYTHING, "independent"), (FULL, "coupled")):
            for choice, said in CHOICES.items():
                setting = Setting(found.main.precision, outputs, choice)
                scores = [mean_of(found.of_method(network, setting, method, None, metric)) for metric in SCORES]
                factor = mean_of(found.of_method(network, setting, method, None, "factor"), math.log10)
                if scores[0]:
                    rows.append([NAMES[network], method, outputs, said, *map(shown, scores), _power(factor)])
    head = ["network", "posterior", "outputs", "factor", "NLL", "ECE", "factor (geometric mean)"]
    return titled(f"Exact posteriors, δ = {found.main.precision:g}", head, rows)


def approximation(found: Results) -> str:
    """How far variances are from those of the exact process, and what a fit takes."""
    rows = []
    setting = Setting(found.main.precision, "independent", ONE)
    for network in found.networks:
        for size in found.sizes(network, setting):
            cells = [NAMES[network], str(size)]
            for metric in ("log_variance_error", "log_variance_bias", "fit_seconds"):
                for method in (SUBSET, SPARSE):
                    cells.append(shown(mean_of(found.of_method(network, setting, method, size, metric)), 3))
            rows.append(cells)
    head = ["network", "M", "error Subset", "error Sparse", "bias Subset", "bias Sparse"]
    title = (
        f"Log variances of f beside those of Everything() (mean absolute error, mean), and CPU seconds of a fit; "
        f"δ = {found.main.precision:g}, independent outputs, as they are"
    )
    return titled(title, [*head, "seconds Subset", "seconds Sparse"], rows)


def _origin(found: Results) -> str:
    seeds = found.config["seeds"]
    said = f"Means ± standard errors over {seeds} seeds; differences are taken seed by seed."
    return f"{said} {origin(found.environment)}"


def _power(log: Mean | None) -> str:
    return NONE if log is None else f"{10**log.mean:.3g}"


# Picture

_SHORT = {ONE: "as it is", PRIOR: "prior precision chosen", TEMPERATURE: "temperature chosen"}


def picture(found: Results) -> Figure:
    """NLL and ECE above those of the network alone, against M: as they are, and with a chosen factor."""
    lines = list(product(found.networks, SCORES))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 2.5 * len(lines) + 0.5), layout="constrained")
        axes = figure.subplots(len(lines), len(_SHORT), sharex=True, squeeze=False)
        for row, (network, metric) in zip(axes, lines, strict=True):
            for axis, choice in zip(row, _SHORT, strict=True):
                _draw(axis, found, network, Setting(found.main.precision, "independent", choice), metric)
            own = mean_of(found.of_method(network, found.main, MAP, None, metric))
            row[0].set_ylabel(f"{NAMES[network]}: {metric.upper()} − MAP's\n(MAP's: {shown(own, 3)})")
        for axis, said in zip(axes[0], _SHORT.values(), strict=True):
            axis.set_title(said, y=1.13)
        for axis in axes[-1]:
            axis.set_xlabel("inducing inputs M")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.align_ylabels(axes[:, 0])
    return figure


def _draw(axis: Axes, found: Results, network: str, setting: Setting, metric: str) -> None:
    sizes = found.sizes(network, setting)
    axis.axhline(0, color=DARK, linestyle=":", linewidth=1.4, label="MAP")
    exact = found.above_map(network, setting, EVERYTHING, None, metric)
    axis.axhline(exact.mean, color=COLOURS[2], linestyle="--", linewidth=1.6, label="Everything()")
    for place, method in enumerate((SPARSE, SUBSET)):
        points = [found.above_map(network, setting, method, size, metric) for size in sizes]
        axis.errorbar(
            [size * (0.98, 1.02)[place] for size in sizes],  # bars beside each other, not on top
            [point.mean for point in points],
            [point.stderr or 0.0 for point in points],
            color=COLOURS[place],
            marker=MARKERS[place],
            capsize=3,
            linewidth=1.6,
            label=f"{method}(M)",
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, labels=[str(size) for size in sizes])
    axis.minorticks_off()
    axis.margins(x=0.1, y=0.1)
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axis.spines[["top", "right"]].set_visible(False)
