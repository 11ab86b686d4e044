"""The page of the banana: its claims, its scores, its planes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.banana.config import MAP, Cell, width_of_mfvi
from experiments.banana.data import BANANA
from experiments.common import tables
from experiments.common.cells import Arrays, write_whole
from experiments.common.checks import Check
from experiments.common.run import Found
from linlap.plotting import Plane, planes
from linlap.report.files import save_picture

if TYPE_CHECKING:
    from experiments.banana.experiment import Banana

TITLES = {
    "map": "MAP",
    "glm_full": "GLM\nfull",
    "glm_diag": "GLM\ndiagonal",
    "glm_refine_full": "GLM\nrefined\nfull",
    "glm_refine_diag": "GLM\nrefined\ndiagonal",
    "bnn_full": "BNN\nfull",
    "bnn_diag": "BNN\ndiagonal",
    "mfvi": "MFVI",
    "hmc": "HMC",
}
POSTERIORS = ("glm_full", "glm_diag", "glm_refine_full", "glm_refine_diag")
PREDICTIVES = ("map", "glm_full", "bnn_full", "bnn_diag", "mfvi", "hmc")
CONVERGED = 1.05  # R-hat
_SCORES, _PARAGRAPHS = ("nll", "accuracy", "ece"), "\n\n"
_WHERE = {
    "far_deviation": "Standard deviation far from data",
    "near_epistemic": "Epistemic variance near data",
    "far_epistemic": "Epistemic variance far from data",
}


def write(banana: Banana, found: Found, checks: Sequence[Check], out: Path) -> None:
    networks = {cell.network: cell for cell in banana.cells() if cell.split == 0 and cell.group == MAP}
    for cell in networks.values():
        for name, wanted in (("predictives", PREDICTIVES), ("posteriors", POSTERIORS)):
            if name == "predictives" or cell.layers == 2:
                _picture(banana, found, cell, wanted, out / f"{name}_{cell.network}.png")
    write_whole(out / "report.md", page(banana, found, checks, list(networks)))


def _picture(banana: Banana, found: Found, cell: Cell, wanted: Sequence[str], path: Path) -> None:
    """The planes of some methods, with the training points of the first split."""
    arrays: Arrays = {}
    for one in banana.cells():
        if one.split == 0 and one.layers == cell.layers:
            arrays |= found.store.arrays(one.name)
    titles = TITLES | {"mfvi": _title_of_mfvi(cell)}
    panels = {titles[name]: _plane(arrays[name], banana) for name in wanted if name in arrays}
    (x, y), _, _ = banana.points.split(0, banana.config.size)
    title = f"{cell.layers} hidden layer{'s' if cell.layers > 1 else ''} of {cell.width} tanh"
    save_picture(planes(panels, x, y, title), path)


def _title_of_mfvi(cell: Cell) -> str:
    width = width_of_mfvi(cell.layers)
    return "MFVI" if width == cell.width else f"MFVI\n{width} units"


def _plane(values: object, banana: Banana) -> Plane:
    mean, aleatoric, epistemic = torch.as_tensor(values).float()
    return Plane(mean, aleatoric, epistemic, banana.config.limit, True)


def of_hmc(banana: Banana, found: Found) -> str:
    """How far its chains can be trusted."""
    config = banana.config
    value = {(row.network, row.metric): row.mean for row in found.rows if row.method == "hmc"}
    chains = f"{config.hmc_samples} draws from each of {config.hmc_chains} chains, after {config.hmc_warmup} to warm up"
    said = [f"HMC, {chains}."]
    for network in dict.fromkeys(network for network, _ in value):
        r_hat, divergences = value[network, "r_hat_outputs"], value[network, "divergences"]
        agree = (
            "they agree" if r_hat < CONVERGED else "they do not agree, and its plane is no truth to hold others against"
        )
        said.append(
            f"{network}: R-hat of f at training points up to {r_hat:.2f}, effective draws of it from "
            f"{value[network, 'effective_outputs']:.0f}, of weights R-hat up to {value[network, 'r_hat']:.2f}, "
            f"{divergences:.0f} divergences: {agree}."
        )
    return " ".join(said) if value else ""


def page(banana: Banana, found: Found, checks: Sequence[Check], networks: Sequence[str]) -> str:
    config, rows = banana.config, found.rows
    what = "the 5300 points of the banana set" if banana.points.name == BANANA else "5300 points on two noisy crescents"
    pictures = [f"![MAP, GLM, BNN and MFVI: {network}](predictives_{network}.png)" for network in networks]
    scores = [f"**{tables.NAMES.get(metric, metric)}**\n\n{tables.pivot(rows, metric)}" for metric in _SCORES]
    return f"""# Two classes in the plane

Of {what}, {config.size} train a network, {config.size} choose its δ (by the NLL of MAP; for MFVI
by its own), the rest are test data. {config.steps} steps of Adam on all training data at once. BNN and MFVI are means
over {config.samples} samples of weights; GLM is by quadrature. `linlap reproduce banana` makes this page.

{tables.claims(checks)}

"Near" is at most 0.5 from a training point, "far" at least 1.5 from all of them, in [−4, 4]². All of MAP's variance is
aleatoric: p(1 − p).

## Predictives

{_PARAGRAPHS.join(filter(None, [*pictures, of_hmc(banana, found)]))}

## Posteriors of the linear model

![GLM: full and diagonal, as fitted and refined](posteriors_2x50_tanh.png)

## Scores on test data

Means over {banana.splits} split{"s, ± standard errors" if banana.splits > 1 else ""}.

{_PARAGRAPHS.join(scores)}

Precision δ that was chosen:

{tables.pivot(rows, "precision")}

Doubt near data and far from them, on the first split:

{_PARAGRAPHS.join(f"**{said}**{_PARAGRAPHS}{tables.pivot(rows, metric)}" for metric, said in _WHERE.items())}

{tables.origin(found.environment)}
"""
