"""Numbers of a posterior and of a predictive, and what the paper claims of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from experiments.common.checks import Check
from experiments.common.run import Found
from experiments.toy.laws import Law
from experiments.toy.posteriors import DAMPENED, GAUSSIAN, GGN, HESSIAN

GRID, HMC = "grid", "hmc"
PAPERS = (HESSIAN, GGN, DAMPENED)
NONE = 0.001  # of the mass: no mass to speak of


def of_weights(name: str, weights: Tensor, shares: Tensor | None = None) -> list[dict[str, Any]]:
    """Rows: a posterior's mass at w < 0, and its widths, from weights `[k, 2]` and their shares (None: all alike)."""
    p = torch.full((len(weights),), 1 / len(weights), dtype=weights.dtype) if shares is None else shares
    w = weights[:, 0]
    on_the_line = w.abs() < 1e-9  # points of a grid, which stand for both sides
    mass = float(p[(w < 0) & ~on_the_line].sum() + 0.5 * p[on_the_line].sum())
    deviation = (p @ (weights - p @ weights).square()).sqrt()
    values = {"mass_below_zero": mass, "deviation_w": float(deviation[0]), "deviation_b": float(deviation[1])}
    return [{"method": name, "metric": metric, "value": value} for metric, value in values.items()]


def of_law(name: str, law: Law, truth: Law) -> list[dict[str, Any]]:
    """Rows: a predictive's distance from the truth, whether its mean ever falls, and p(y = 1 | x = 3)."""
    values = {
        "distance_of_means": law.distance_of_means(truth),
        "distance_of_laws": law.distance(truth),
        "least_rise": law.least_rise,
        "modes_at_3": float(len(law.modes)),
        "least_mode_at_3": min(law.modes),
        "mean_at_-8": float(law.mean[0]),
        "mean_at_8": float(law.mean[-1]),
    }
    return [{"method": name, "metric": metric, "value": value} for metric, value in values.items()]


def checks(found: Found) -> list[Check]:
    """The claims, each with its numbers."""
    value = {(row.method, row.metric): row.mean for row in found.rows}
    return [_sampler(value), _masses(value), _widths(value), _monotone(value), *_modes(value), *_distances(value)]


Values = dict[tuple[str, str], float]


def _sampler(value: Values) -> Check:
    apart, effective = (value[HMC, metric] for metric in ("distance_of_laws", "effective_samples"))
    return Check(
        "HMC finds the exact posterior",
        f"distance of means {value[HMC, 'distance_of_means']:.4f}, of laws {apart:.4f}; R-hat up to "
        f"{value[HMC, 'r_hat']:.3f}, effective samples from {effective:.0f}",
        apart < 0.2 / math.sqrt(effective) and value[HMC, "r_hat"] < 1.05,  # what so many samples can be off by
    )


def _masses(value: Values) -> Check:
    true = value[GRID, "mass_below_zero"]
    others = {name: value[name, "mass_below_zero"] for name in PAPERS}
    return Check(
        "The true posterior has no mass at w < 0, every Laplace posterior has",
        f"exact {true:.1e}; HMC {value[HMC, 'mass_below_zero']:.1e}; {_listed(others)}",
        true < NONE and value[HMC, "mass_below_zero"] < NONE and all(mass > 10 * NONE for mass in others.values()),
    )


def _widths(value: Values) -> Check:
    widths = [{name: value[name, f"deviation_{of}"] for name in (GGN, HESSIAN, DAMPENED)} for of in "wb"]
    return Check(
        "Laplace-GGN is wider than full Laplace, the dampened one narrower",
        "; ".join(f"deviation of {of}: {_listed(each)}" for of, each in zip("wb", widths, strict=True)),
        all(list(each.values()) == sorted(each.values(), reverse=True) for each in widths),
    )


def _monotone(value: Values) -> Check:
    ends = value[f"glm_{GGN}", "mean_at_-8"], value[f"glm_{GGN}", "mean_at_8"]
    rise = value[f"glm_{GGN}", "least_rise"]
    return Check(
        "The mean of the GLM predictive rises from 0 to 1 and never falls",
        f"from {ends[0]:.3f} to {ends[1]:.3f}, least step {rise:.0e}",
        rise >= 0 and ends[0] < 0.05 and ends[1] > 0.95,
    )


def _modes(value: Values) -> Iterable[Check]:
    for names, modes in (([f"bnn_{name}" for name in PAPERS], 2), ([GRID, HMC, f"glm_{GGN}"], 1)):
        found = {name: value[name, "modes_at_3"] for name in names}
        first = {name: value[name, "least_mode_at_3"] for name in names}
        wanted = all(mode < 0.1 for mode in first.values()) if modes == 2 else all(m > 0.9 for m in first.values())
        claim = (
            "At x = 3 the BNN predictives have one mode at 0 and one at 1"
            if modes == 2
            else "At x = 3 the true predictive and the GLM predictive have one mode, at 1"
        )
        shown = ", ".join(f"{name} {found[name]:.0f}, first at {first[name]:.2f}" for name in names)
        yield Check(claim, f"modes: {shown}", all(n == modes for n in found.values()) and wanted)


def _distances(value: Values) -> Iterable[Check]:
    apart = {
        method: found
        for (method, metric), found in value.items()
        if metric == "distance_of_means" and method not in (GRID, HMC)
    }
    ours, bnns = apart[f"glm_{GGN}"], {f"bnn_{name}": apart[f"bnn_{name}"] for name in PAPERS}
    yield Check(
        "Of the paper's predictives, GLM with the Laplace-GGN posterior is nearest to the true one",
        f"mean distance of means: glm_{GGN} {ours:.3f}; {_listed(bnns)}",
        all(ours < other for other in bnns.values()),
    )
    pairs = [(apart[f"glm_{name}"], apart[f"bnn_{name}"]) for name in GAUSSIAN]
    yield Check(
        "With every one of these posteriors, GLM is nearer to the true predictive than BNN",
        "; ".join(f"{name} {g:.3f} against {b:.3f}" for name, (g, b) in zip(GAUSSIAN, pairs, strict=True)),
        all(glm < bnn for glm, bnn in pairs),
    )


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())
