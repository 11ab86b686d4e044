"""Test NLL against δ."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linlap.plotting import COLOURS, MARKERS, STYLE

NAMES = {"map": "MAP", "bnn_full": "BNN", "glm_full": "GLM", "glm_refine_full": "GLM refined"}
_PLACE = {method: place for place, method in enumerate(NAMES)}
Curve = NDArray[np.float32]
Sweeps = Mapping[tuple[str, str], Mapping[str, Curve]]
"""By set and network: NLL `[splits, δ]` of each method."""


def sweep(found: Sweeps, precisions: tuple[float, ...]) -> Figure:
    """A panel for each set and network: the mean over splits with its standard error."""
    sets = list(dict.fromkeys(dataset for dataset, _ in found))
    networks = sorted({network for _, network in found})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 2.9 * len(sets), 0.9 + 2.6 * len(networks)), layout="constrained")
        axes = figure.subplots(len(networks), len(sets), squeeze=False, sharex=True)
        for row, network in zip(axes, networks, strict=True):
            for panel, dataset in zip(row, sets, strict=True):
                _panel(panel, found.get((dataset, network), {}), precisions)
                panel.set_title(f"{dataset}, {network.partition('_')[0]}")
            row[0].set_ylabel("test NLL")
        for panel in axes[-1]:
            panel.set_xlabel("prior precision δ")
        handles = {line.get_label(): line for panel in axes.flat for line in panel.get_lines()}
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=len(NAMES), frameon=False)
    return figure


def _panel(panel: Axes, sweeps: Mapping[str, Curve], precisions: tuple[float, ...]) -> None:
    panel.set_xscale("log")
    panel.grid(alpha=0.3)
    for spine in ("top", "right"):
        panel.spines[spine].set_visible(False)
    highest = 0.0
    for method, name in NAMES.items():
        if method not in sweeps:
            continue
        nll = sweeps[method]
        mean, error = nll.mean(0), nll.std(0, ddof=min(1, len(nll) - 1)) / len(nll) ** 0.5
        colour, marker = COLOURS[_PLACE[method]], MARKERS[_PLACE[method]]
        panel.plot(precisions, mean, color=colour, marker=marker, ms=4, lw=1.4, label=name)
        panel.fill_between(precisions, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
        highest = max(highest, 1.25 * float(np.median(mean)), 1.05 * float(mean.min()))
    if highest:
        panel.set_ylim(top=highest)  # a network alone overfits without bound at small δ
