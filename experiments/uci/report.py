"""The page: what is done, the paper's claims, tables with the paper's values beside ours, the sweep over δ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.common import tables
from experiments.common.cells import write_whole
from experiments.common.checks import Check
from experiments.common.rows import Row
from experiments.common.run import Found
from experiments.uci import figures
from experiments.uci.config import NETWORKS, Config
from experiments.uci.groups import GROUPS
from linlap.report.files import save_picture

METHODS = {
    "map": "MAP",
    "mfvi": "MFVI",
    "bnn_full": "BNN",
    "glm_full": "GLM",
    "glm_diag": "GLM diagonal",
    "glm_refine_full": "GLM refined",
    "glm_refine_diag": "GLM refined, diagonal",
    "glm_evidence": "GLM, δ by evidence",
    "gp_coupled": "GP, coupled outputs",
    "gp_independent": "GP, independent outputs",
    "temperature": "MAP, temperature scaled",
    "ensemble": "deep ensemble",
}
METRICS = {"nll": "NLL", "accuracy": "Accuracy", "ece": "ECE"}
PICTURE = "uci_sweep.png"


def write(found: Found, checks: Sequence[Check], config: Config, out: Path) -> None:
    """report.md, and the picture where there is something to draw."""
    sweeps = _sweeps(found)
    if sweeps:
        save_picture(figures.sweep(sweeps, config.precisions), out / PICTURE)
    write_whole(out / "report.md", page(found, checks, config, bool(sweeps)))


def _sweeps(found: Found) -> figures.Sweeps:
    made: dict[tuple[str, str], dict[str, figures.Curve]] = {}
    for record in found.records:
        about = record["cell"]
        arrays = found.store.arrays("-".join(about.values())) if record.get("arrays") else {}
        curves = {method: arrays[f"{method}.nll"] for method in figures.NAMES if f"{method}.nll" in arrays}
        if curves:
            made.setdefault((about["dataset"], about["network"]), {}).update(curves)
    return made


def page(found: Found, checks: Sequence[Check], config: Config, pictured: bool) -> str:
    """Markdown."""
    parts = [
        "# Eight sets of the UCI repository",
        f"{len(config.splits)} splits, {len(config.precisions)} δ from {config.precisions[0]:g} to "
        f"{config.precisions[-1]:g}, {config.steps} steps of training; δ is chosen for each method and split by NLL on "
        "validation data. `linlap reproduce uci` measures what is missing, and makes this page.",
        _done(found, config),
        tables.claims(checks),
        "Each number is a mean over the splits, and in parentheses stands the paper's. **Bold**: worse than the "
        "paper's by more than two standard errors, theirs and ours combined.",
    ]
    if pictured:
        parts += [
            f"![Test NLL against δ]({PICTURE})",
            "Test NLL against the δ of training and posterior, mean over the splits with its standard error.",
        ]
    for network in (name for name in NETWORKS if any(row.network == name for row in found.rows)):
        for metric, title in METRICS.items():
            rows = [row for row in found.rows if (row.network, row.metric) == (network, metric)]
            parts.append(_table(rows, f"{title}, {network}"))
    off = [row for row in found.rows if row.reproduces() is False]
    if off:
        parts += ["## Worse than the paper's by more than two standard errors", tables.compared(off)]
    origin = f"{tables.origin(found.environment)} Trainings whose weights were there already are not in that time."
    return "\n\n".join([*parts, BEYOND, origin]) + "\n"


def _done(found: Found, config: Config) -> str:
    """Which cells these are."""
    there = {tuple(record["cell"].values()) for record in found.records}
    pairs = [(dataset, network) for dataset in config.sets for network in config.networks]
    lines = [[*pair, *("yes" if (*pair, group) in there else "no" for group in GROUPS)] for pair in pairs]
    whole = sum("no" not in line for line in lines)
    if whole == len(pairs):
        return "Everything is measured."
    return (
        f"**Partial**: {len(there)} of {len(pairs) * len(GROUPS)} cells are measured; {whole} of {len(pairs)} pairs "
        f"of a set and a network have all of theirs.\n\n{tables.table(['set', 'network', *GROUPS], lines)}"
    )


def _table(rows: Sequence[Row], title: str) -> str:
    """A line a method, a column a set."""
    sets = list(dict.fromkeys(row.dataset for row in rows))
    found = {(row.dataset, row.method): row for row in rows}
    lines = [
        [said, *(_cell(found.get((dataset, method))) for dataset in sets)]
        for method, said in METHODS.items()
        if any((dataset, method) in found for dataset in sets)
    ]
    return tables.titled(title, ["", *sets], lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return tables.NONE
    ours = tables.shown(row.ours, 3)
    if row.paper_mean is None:
        return ours
    both = f"{ours} ({row.paper_mean:.3g})"
    return both if row.reproduces() else f"**{both}**"


BEYOND = """## Beyond the paper

- *δ by evidence*: of the networks trained with each δ, the one whose Laplace approximation has the largest evidence; no
  validation data.
- *GP, coupled outputs*: the posterior of GLM in function space, equal to it but for rounding. *Independent outputs*: a
  process for each output, which knows only the diagonal of Λ.
- *Temperature scaled*: one number a network, by validation NLL.
- *Deep ensemble*: the network and others from other first weights, at the δ where it is best alone on validation data.
- NUTS over the weights is not among them: trees of depth 10 in 1000 steps of warming up and 1000 draws are two million
  gradients a chain, two hundred times what training takes, and chains do not go side by side as trainings do."""
