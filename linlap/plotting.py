"""Pictures of predictive distributions, as matplotlib Figures of their own: no window, no state of pyplot.

Save one with `figure.savefig("name.png")`. Needs `pip install 'linlap[plot]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from torch import Tensor
from torch import distributions as td

from linlap import metrics
from linlap.errors import InputError
from linlap.ood import ood_auc, predictive_entropy
from linlap.uncertainty import HasMoments
from linlap.validation import Axis, Minimum

# Okabe and Ito's colours, told apart under every common colour blindness; markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
FEW = 10
# Bands of colour can be matched with the bar by eye, and make a picture a third of the size of a smooth one.
LEVELS = 20
INSIDE, OUTSIDE, FAINT, DARK = COLOURS[0], COLOURS[1], "#8A8A8A", "#262626"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.edgecolor": "#666666",
    "axes.linewidth": 0.8,
    "legend.fontsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "savefig.dpi": 110,
}


@dataclass(frozen=True)
class Plane:
    """Moments of a predictive on a grid over [−limit, limit]², each `[points, points]`, lowest row first."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    limit: float
    of_classes: bool

    @property
    def deviation(self) -> Tensor:
        return (self.aleatoric + self.epistemic).sqrt()


def on_plane(predictive: HasMoments, like: Tensor, *, limit: float = 4.0, points: int = 80, output: int = 0) -> Plane:
    """The plane of one output of a predictive over 2-d inputs; `like` is a tensor of the inputs' dtype and device."""
    line = torch.linspace(-limit, limit, points, dtype=like.dtype, device=like.device)
    upward, across = torch.meshgrid(line, line, indexing="ij")
    moments = predictive.moments(torch.stack([across, upward], -1).reshape(-1, 2))

    def shaped(values: Tensor) -> Tensor:
        return values[:, output].detach().cpu().reshape(points, points)

    mean, aleatoric, epistemic = shaped(moments.mean), shaped(moments.aleatoric), shaped(moments.epistemic)
    return Plane(mean, aleatoric, epistemic, limit, moments.predictive_entropy is not None)


@dataclass(frozen=True)
class _Column:
    title: str
    colours: str
    values: Callable[[Plane], Tensor]
    low: float
    high: float


def planes(panels: Mapping[str, Plane], x: Tensor, y: Tensor, title: str = "") -> Figure:
    """Mean, standard deviation, aleatoric and epistemic variance (columns) of each predictive (rows).

    A column has one scale of colours, the two variances one between them. Training points x `[n, 2]` lie on
    top, for classes with a marker for each label in y.
    """
    if not panels or x.ndim != 2 or x.shape[1] != 2:
        given = f"{len(panels)} planes and x of shape {tuple(x.shape)}"
        raise InputError(f"{given}; pass at least one plane, and training points of shape [n, 2].")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.6, 2.4 * len(panels) + 1.1), layout="constrained")
        axes = figure.subplots(len(panels), 4, sharex=True, sharey=True, squeeze=False)
        for place, column in enumerate(_columns(list(panels.values()))):
            for axis, plane in zip(axes[:, place], panels.values(), strict=True):
                _draw_plane(axis, plane, column)
                _draw_points(axis, x.detach().cpu(), y.detach().cpu(), plane)
            axes[0, place].set_title(column.title)
            bar = figure.colorbar(
                axes[-1, place].images[0], ax=axes[:, place], orientation="horizontal", shrink=0.86, aspect=26, pad=0.02
            )
            ticks = np.linspace(column.low, column.high, 3)
            bar.set_ticks(list(ticks), labels=[f"{tick:.3g}" for tick in ticks])
        for axis, name in zip(axes[:, 0], panels, strict=True):
            axis.set_ylabel(name, fontsize=13, fontweight="bold", rotation=0, ha="right", va="center", labelpad=8)
        if title:
            figure.suptitle(title, fontsize=13)
    return figure


def _columns(panels: Sequence[Plane]) -> list[_Column]:
    if panels[0].of_classes:
        means, spread, variance = (0.0, 1.0), 0.5, 0.25
    else:
        means = (min(float(p.mean.min()) for p in panels), max(float(p.mean.max()) for p in panels))
        spread = max(float(p.deviation.max()) for p in panels)
        variance = max(float(torch.maximum(p.aleatoric, p.epistemic).max()) for p in panels)
    return [
        _Column("predictive mean", "RdBu_r", lambda plane: plane.mean, *means),
        _Column("standard deviation", "YlGnBu", lambda plane: plane.deviation, 0.0, spread),
        _Column("aleatoric variance", "YlGnBu", lambda plane: plane.aleatoric, 0.0, variance),
        _Column("epistemic variance", "YlGnBu", lambda plane: plane.epistemic, 0.0, variance),
    ]


def _draw_plane(axis: Axes, plane: Plane, column: _Column) -> None:
    extent = (-plane.limit, plane.limit, -plane.limit, plane.limit)
    axis.imshow(
        column.values(plane).numpy(),
        origin="lower",
        extent=extent,
        cmap=matplotlib.colormaps[column.colours].resampled(LEVELS),
        vmin=column.low,
        vmax=column.high,
        interpolation="bilinear",
        interpolation_stage="data",
    )
    axis.set_xticks([])
    axis.set_yticks([])


def _draw_points(axis: Axes, x: Tensor, y: Tensor, plane: Plane) -> None:
    if not plane.of_classes:
        axis.scatter(x[:, 0].numpy(), x[:, 1].numpy(), s=7, c=DARK, linewidths=0)
        return
    for place, label in enumerate(y.unique()):
        across, upward = x[y.reshape(-1) == label].T.numpy()
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axis.scatter(across, upward, s=13, c=colour, marker=marker, linewidths=0.5, edgecolors="white")


def reliability(predictions: Mapping[str, td.Distribution], y: Tensor, *, bins: int = 10, title: str = "") -> Figure:
    """Accuracy against confidence, one line a predictive, with its calibration error; below, where confidences lie.

    Bins with few inputs, whose accuracy says little, have hollow markers.
    """
    if not predictions:
        raise InputError("no predictions; pass at least one, as {name: predictive(x)}.")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 6.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1.2)
        slanted: Any = {"color": "#777777", "style": "italic", "rotation": 45, "rotation_mode": "anchor"}
        upper.text(0.02, 0.04, "underconfident", va="bottom", transform_rotates_text=True, **slanted)
        upper.text(0.05, 0.03, "overconfident", va="top", transform_rotates_text=True, **slanted)
        for place, (name, predictive) in enumerate(predictions.items()):
            curve = metrics.reliability(predictive, y, bins)
            colour = COLOURS[place % len(COLOURS)]
            label = f"{name}: ECE {metrics.ece(predictive, y, bins):.3f}"
            _draw_curve(upper, curve, colour, MARKERS[place % len(MARKERS)], label)
            width = 0.78 / bins / len(predictions)
            centres = (curve.edges[:-1] + curve.edges[1:]).cpu() / 2 + (place - (len(predictions) - 1) / 2) * width
            lower.bar(centres.numpy(), (curve.count / curve.count.sum()).cpu().numpy(), width, color=colour)
        upper.plot([], [], "o", color=FAINT, markerfacecolor="white", label=f"fewer than {FEW} inputs")
        upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        upper.legend(loc="lower right", frameon=False)
        lower.set(xlabel="confidence (largest probability)", ylabel="share of inputs")
        for axis in (upper, lower):
            axis.spines[["top", "right"]].set_visible(False)
        if title:
            figure.suptitle(title, fontsize=13)
    return figure


def _draw_curve(axis: Axes, curve: metrics.Reliability, colour: str, marker: str, label: str) -> None:
    confidence, accuracy, count = (part.cpu().numpy() for part in (curve.confidence, curve.accuracy, curve.count))
    known, few = count > 0, (count > 0) & (count < FEW)
    style: Any = {"color": colour, "marker": marker, "markersize": 6.5, "clip_on": False}
    # Markers on the edge are drawn whole; were they part of the layout, it would shrink the axes to hold them.
    style["in_layout"] = False
    axis.plot(confidence[known], accuracy[known], label=label, **style)
    axis.plot(confidence[few], accuracy[few], linestyle="", markerfacecolor="white", zorder=3, **style)


def entropies(
    inside: Mapping[str, td.Distribution],
    outside: Mapping[str, td.Distribution],
    *,
    names: tuple[str, str] = ("in distribution", "out of distribution"),
    bins: int = 24,
    title: str = "",
) -> Figure:
    """Histograms of predictive entropy in and out of distribution, one panel a predictive, with its OOD-AUC."""
    if not inside or inside.keys() != outside.keys():
        raise InputError(f"predictions inside for {list(inside)}, outside for {list(outside)}; they must be the same.")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(inside), 3.5), layout="constrained")
        axes = figure.subplots(1, len(inside), sharex=True, sharey=True, squeeze=False)[0]
        scores = {name: [predictive_entropy(side[name]).cpu() for side in (inside, outside)] for name in inside}
        top = max(float(score.max()) for pair in scores.values() for score in pair)
        edges = np.linspace(0, top, bins + 1)
        for axis, (name, pair) in zip(axes, scores.items(), strict=True):
            for score, label, colour in zip(pair, names, (INSIDE, OUTSIDE), strict=True):
                share = np.histogram(score.numpy(), edges)[0] / len(score)
                axis.stairs(share, edges, fill=True, color=colour, alpha=0.35)
                axis.stairs(share, edges, color=colour, linewidth=1.5, label=label)
            axis.set_title(f"{name}: OOD-AUC {ood_auc(*pair):.3f}")
            axis.set_xlabel("entropy (nats)")
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("share of inputs")
        axes[0].set_xlim(0, top)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        if title:
            figure.suptitle(title, fontsize=13)
    return figure


def scores(found: Minimum, *, title: str = "") -> Figure:
    """What `ll.Validation(...).minimise` found: the scores as a curve or, for priors and temperatures, as a map.

    A star marks the least.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 4.0), layout="constrained")
        axis = figure.subplots()
        first, *second = found.axes
        axis.set(xlabel=first.name, xscale=_scale(first))
        if second:
            _draw_map(axis, found)
            axis.set(ylabel=second[0].name, yscale=_scale(second[0]))
        else:
            _draw_scores(axis, found)
        where = ", ".join(f"{value:.3g}" for value in found.values)
        axis.set_title(title or f"least {found.objective} {float(found.scores[found.place]):.4g}, at {where}")
    return figure


def _scale(along: Axis) -> str:
    return "log" if along.ordered else "linear"


def _draw_scores(axis: Axes, found: Minimum) -> None:
    values = np.array(found.axes[0].values)
    order = values.argsort()
    axis.plot(values[order], found.scores.numpy()[order], marker=".", color=COLOURS[0])
    axis.plot(found.values, float(found.scores[found.place]), "*", color=COLOURS[1], markersize=15, clip_on=False)
    axis.set_ylabel(found.objective)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_map(axis: Axes, found: Minimum) -> None:
    orders = [np.array(along.values).argsort() for along in found.axes]
    across, upward = (_edges(along, order) for along, order in zip(found.axes, orders, strict=True))
    scores = found.scores.numpy()[np.ix_(*orders)].T
    # As many cells in each colour: near the least, scores differ by little beside what they do at the corners.
    levels = np.unique(np.quantile(scores[np.isfinite(scores)], np.linspace(0, 1, LEVELS // 2 + 1)))
    norm = BoundaryNorm(levels, 256) if len(levels) > 1 else None
    image = axis.pcolormesh(across, upward, scores, cmap="YlGnBu", norm=norm)
    axis.figure.colorbar(image, ax=axis, label=found.objective, format="%.4g")
    axis.plot(*([value] for value in found.values), "*", color=COLOURS[1], markersize=15, clip_on=False)


def _edges(along: Axis, order: np.ndarray) -> np.ndarray:
    """Where the cell of one value ends and the next begins: half way between them, on the scale they are drawn on."""
    values = np.array(along.values)[order]
    if along.ordered:
        values = np.log(values)
    middles = (values[1:] + values[:-1]) / 2
    first, last = (0.5, 0.5) if len(values) == 1 else (middles[0] - values[0], values[-1] - middles[-1])
    edges = np.concatenate([[values[0] - first], middles, [values[-1] + last]])
    return np.exp(edges) if along.ordered else edges
