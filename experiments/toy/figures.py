"""The two figures of the toy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.common.cells import Arrays
from experiments.toy.laws import AT, BINS, INPUTS, LEVELS, Law
from experiments.toy.posteriors import LIMIT
from experiments.toy.problem import X, Y, outputs
from linlap.plotting import COLOURS, DARK, FAINT, MARKERS, STYLE

TRUE, UNDERFIT, OURS, OTHER = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3]
WINDOW = ((-1.6, 3.2), (-2.6, 2.6))
SHARES = (0.1, 0.5, 0.9)
_LINE = INPUTS.numpy()


@dataclass(frozen=True)
class Column:
    """A posterior, by its density or its moments, and one predictive of it."""

    title: str
    colour: str
    posterior: Arrays
    law: Law


def illustration(true: Column, bnn: Column, glm: Column) -> Figure:
    """Above: the posteriors, two weights as functions of both models, p at x = 3. Below: the predictives."""
    draws = np.array([[1.0, 0.3], [-0.45, 0.3]])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.6, 6.8), layout="constrained")
        (left, middle, right), below = figure.subplots(2, 3)
        density(left, true)
        density(left, glm)
        for place, (draw, colour) in enumerate(zip(draws, (DARK, OTHER), strict=True)):
            left.plot(*draw, MARKERS[place], color=colour, markersize=8, markeredgecolor="white", zorder=4)
        left.set(title="Posterior of the weights", xlabel="slope w", ylabel="shift b")
        left.text(2.25, 1.5, true.title, color=true.colour)
        left.text(-1.5, -2.4, "Laplace-GGN", color=glm.colour)
        _draws(middle, draws, glm.posterior["mean"])
        for column in (true, bnn, glm):
            height = column.law.shares * BINS
            right.stairs(height, np.linspace(0, 1, BINS + 1), color=column.colour, linewidth=1.8, label=column.title)
        right.set(title=f"Density of p(y = 1 | x) at x = {AT:g}", xlabel="p(y = 1 | x)", yscale="log", ylim=(0.03, 1e3))
        right.legend(frameon=False, loc="upper left")
        for axis, column in zip(below, (true, bnn, glm), strict=True):
            probabilities(axis, column)
            axis.set_title(f"Predictive: {column.title}")
            axis.set_xlabel("x")
        below[0].set_ylabel("p(y = 1 | x)")
        _bands_legend(figure, below[0])
    return figure


def posteriors(columns: list[Column]) -> Figure:
    """Each posterior (above), the law of f (middle) and the predictive (below)."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.7 * len(columns) + 0.6, 7.8), layout="constrained")
        axes = figure.subplots(3, len(columns), sharex="row", sharey="row")
        for upper, middle, lower, column in zip(*axes, columns, strict=True):
            density(upper, column)
            upper.set_title(column.title)
            upper.set_xlabel("slope w")
            bands(middle, column.law.f, column.colour)
            probabilities(lower, column)
            lower.set_xlabel("x")
        for axis, label in zip(axes[:, 0], ("shift b", "f(x)", "p(y = 1 | x)"), strict=True):
            axis.set_ylabel(label)
        axes[1, 0].set(xlim=(_LINE[0], _LINE[-1]), ylim=(-9, 9))
        _bands_legend(figure, axes[2, 0])
    return figure


def density(axis: Axes, column: Column) -> None:
    """Lines around the innermost shares of a posterior's mass, and its mode or mean."""
    across, upward = (np.linspace(*window, 241) for window in WINDOW)
    if "shares" in column.posterior:
        shares = column.posterior["shares"]
        axis.plot(*column.posterior["draws"].T, ".", color=column.colour, markersize=2, alpha=0.25, markeredgewidth=0)
        line = np.linspace(-LIMIT, LIMIT, len(shares))
        axis.contour(line, line, shares.T, levels=_levels(shares), colors=column.colour, linewidths=1.5)
        mode = np.argwhere(shares == shares.max())[0]
        axis.plot(*line[mode], "+", color=column.colour, markersize=9)
    else:
        mean, covariance = column.posterior["mean"], column.posterior["covariance"]
        apart = np.stack(np.meshgrid(across, upward, indexing="ij"), -1) - mean
        square = np.einsum("...i,ij,...j", apart, np.linalg.inv(covariance), apart)
        # The innermost share s of a Gaussian in the plane lies where its square is at most −2 log(1 − s).
        levels = [-2 * np.log(1 - share) for share in SHARES]
        axis.contour(across, upward, square.T, levels=levels, colors=column.colour, linewidths=1.5)
        axis.plot(*mean, "+", color=column.colour, markersize=9)
    axis.axvline(0, color=FAINT, linestyle=":", linewidth=1.2)
    axis.set(xlim=WINDOW[0], ylim=WINDOW[1])


def bands(axis: Axes, quantiles: NDArray[Any], colour: str) -> None:
    """The innermost 50 % and 66 %, and the median."""
    for share, alpha in ((0.66, 0.18), (0.5, 0.3)):
        low, high = (quantiles[np.abs(LEVELS.numpy() - level).argmin()] for level in (0.5 - share / 2, 0.5 + share / 2))
        axis.fill_between(_LINE, low, high, color=colour, alpha=alpha, linewidth=0, label=f"innermost {share:.0%}")
    axis.plot(_LINE, quantiles[len(quantiles) // 2], color=colour, linewidth=1.8, label="median")


def probabilities(axis: Axes, column: Column) -> None:
    """p(y = 1 | x): bands, median, mean, and the data."""
    bands(axis, column.law.p, column.colour)
    axis.plot(_LINE, column.law.mean, color=DARK, linestyle="--", linewidth=1.6, label="mean: the predictive")
    for label in (0, 1):
        x = X[label == Y].numpy()
        axis.plot(x, np.full_like(x, label), MARKERS[label], color=DARK, markersize=6, linestyle="", clip_on=False)
    axis.set(xlim=(_LINE[0], _LINE[-1]), ylim=(-0.04, 1.04))


def _draws(axis: Axes, draws: NDArray[Any], mean: NDArray[Any]) -> None:
    centre, theta = torch.as_tensor(mean), torch.as_tensor(draws)
    linear = torch.stack([_linear(centre, one) for one in theta])
    for f, style, label in ((outputs(theta, INPUTS), "-", "f(x; θ)"), (linear, "--", "the linear model")):
        for place, colour in enumerate((DARK, OTHER)):
            axis.plot(_LINE, f[place], color=colour, linewidth=1.6, linestyle=style, label=None if place else label)
    axis.set(title="The network at these two weights", xlabel="x", xlim=(_LINE[0], _LINE[-1]), ylim=(-7, 11.5))
    axis.legend(frameon=False, loc="upper left", ncols=2)


def _linear(centre: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    made = torch.func.jvp(lambda w: outputs(w.unsqueeze(0), INPUTS)[0], (centre,), (theta - centre,))
    return torch.stack(made[:2]).sum(0)


def _levels(shares: NDArray[Any]) -> list[float]:
    """Heights whose lines hold the innermost shares, from low to high."""
    ordered = np.sort(shares.ravel())[::-1]
    inside = np.cumsum(ordered)
    return sorted(float(ordered[np.searchsorted(inside, share)]) for share in SHARES)


def _bands_legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
