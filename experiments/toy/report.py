"""The page of the toy: its claims, its numbers, its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.common import tables
from experiments.common.cells import write_whole
from experiments.common.checks import Check
from experiments.common.run import Found
from experiments.toy import figures
from experiments.toy.claims import GRID, HMC
from experiments.toy.figures import OURS, TRUE, UNDERFIT, Column
from experiments.toy.laws import Law
from experiments.toy.posteriors import DAMPENED, GAUSSIAN, GGN, HESSIAN, KRON, KRON_DAMPENED
from linlap.report.files import save_picture

NAMES = {
    GRID: "exact",
    HMC: "HMC",
    HESSIAN: "full Laplace",
    GGN: "Laplace-GGN",
    DAMPENED: "dampened Laplace-GGN",
    KRON: "Kronecker factors",
    KRON_DAMPENED: "Kronecker factors, dampened",
}
_COLOURS = {"bnn": UNDERFIT, "glm": OURS}
_WIDTHS = {"mass_below_zero": "mass at w < 0", "deviation_w": "deviation of w", "deviation_b": "deviation of b"}
_PREDICTIVES = {
    "distance_of_means": "of p(y = 1 \\| x)",
    "distance_of_laws": "of its law",
    "mean_at_8": "p(y = 1 \\| x = 8)",
    "modes_at_3": "modes at x = 3",
}


def write(found: Found, checks: Sequence[Check], out: Path) -> None:
    true, bnn, glm = _true(found), _column(found, GGN, "bnn"), _column(found, GGN, "glm")
    others = _column(found, HESSIAN, "bnn"), bnn, glm, _column(found, DAMPENED, "bnn")
    save_picture(figures.illustration(true, bnn, glm), out / "toy_classification.png")
    save_picture(figures.posteriors([*others, true]), out / "1d_toy.png")
    write_whole(out / "report.md", page(found, checks))


def _true(found: Found) -> Column:
    """HMC's draws on the exact density, and the predictive of the draws."""
    sampled = found.store.arrays(HMC)
    return Column(NAMES[HMC], TRUE, found.store.arrays(GRID) | {"draws": sampled["draws"]}, Law.among(sampled, HMC))


def _column(found: Found, posterior: str, predictive: str) -> Column:
    arrays = found.store.arrays(posterior)
    law = Law.among(arrays, f"{predictive}_{posterior}")
    return Column(f"{NAMES[posterior]}, {predictive.upper()}", _COLOURS[predictive], arrays, law)


def page(found: Found, checks: Sequence[Check]) -> str:
    return f"""# Two weights: why the BNN predictive underfits

Six points on a line, x = −6, −4, −2 with y = 0 and x = 2, 4, 6 with y = 1; f(x) = 5 tanh(wx + b); p(y = 1 | x) is the
sigmoid of f(x); w and b are N(0, 1). With two weights the posterior is known exactly, on a grid, and everything can be
held against it, HMC among it. `linlap reproduce toy` makes this page.

{tables.claims(checks)}

![Posterior, two draws, predictives](toy_classification.png)

Above left: lines around the innermost 10, 50 and 90 % of the exact posterior, with draws of HMC, and of the Laplace-GGN
posterior, with their modes (+) and two weights. Middle: weights from where only the Laplace posterior has mass (▲) make
a network with its classes swapped; the linear model at the same weights ends where it should. Right: for BNN,
p(y = 1 | x = 3) so piles up at 0, too. Below: its mean is pulled to ½ everywhere, while GLM follows that of HMC.
Shaded: innermost 50 and 66 %; solid: median; dashed: mean.

![All posteriors and predictives](1d_toy.png)

## Posteriors

{tables.table(["posterior", *_WIDTHS.values()], _widths(found))}

"Dampened" makes each eigenvalue h of the curvature, with the prior's δ, into (√h + √δ)² instead of h + δ: of all
factors h = qa that could be dampened as (q + √δ)(a + √δ), the ones it changes least. Kronecker factors over the data,
as larger networks need them, make the posterior of w narrow by themselves; dampened (`ll.Kron(damping="sqrt")`) it is
narrower still.

## Predictives

Distances from the exact predictive, as means over x from −8 to 8: of p(y = 1 | x), and of the law of p(y = 1 | x)
under the posterior (how far its mass has to move).

{tables.table(["posterior", "predictive", *_PREDICTIVES.values()], _predictives(found))}

With dampened Kronecker factors, the narrowest posterior here, BNN comes about as near as GLM with the widest one; GLM
with the same posterior comes nearer still.

{tables.origin(found.environment)}
"""


def _widths(found: Found) -> list[list[str]]:
    value = {(row.method, row.metric): row.mean for row in found.rows}
    return [[NAMES[name], *(f"{value[name, metric]:.3g}" for metric in _WIDTHS)] for name in (GRID, HMC, *GAUSSIAN)]


def _predictives(found: Found) -> list[list[str]]:
    value = {(row.method, row.metric): row.mean for row in found.rows}
    methods = [(GRID, None), (HMC, None), *((name, predictive) for name in GAUSSIAN for predictive in ("bnn", "glm"))]
    return [
        [
            NAMES[name],
            tables.NONE if predictive is None else predictive.upper(),
            *(f"{value[f'{predictive}_{name}' if predictive else name, metric]:.3g}" for metric in _PREDICTIVES),
        ]
        for name, predictive in methods
    ]
