"""The paper's claims about these sets, held against rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.common.checks import Check
from experiments.common.rows import Row

UNREFINED = ("map", "mfvi", "bnn_full", "glm_full", "glm_diag")
REFINED = ("glm_refine_full", "glm_refine_diag")


def held(rows: Sequence[Row]) -> list[Check]:
    """Those there are rows for."""
    checks = [
        _reproduced(rows, UNREFINED, 0.95, "MAP, MFVI, BNN, GLM and its diagonal"),
        _reproduced(rows, REFINED, 0.90, "the refined GLMs"),
        _better(rows, "glm_full", "bnn_full", 1.0, "GLM has a smaller NLL than BNN on every set, for every network"),
        _better(
            rows, "glm_refine_full", "glm_full", 0.5, "the refined GLM is as good in NLL as GLM or better on most sets"
        ),
    ]
    return [check for check in checks if check is not None]


def counted(rows: Iterable[Row], methods: Sequence[str]) -> tuple[int, int]:
    """How many of the scores that the paper has are reproduced, and how many there are."""
    found = [row.reproduces() for row in rows if row.method in methods and row.paper_mean is not None]
    return sum(map(bool, found)), len(found)


def _reproduced(rows: Sequence[Row], methods: Sequence[str], share: float, said: str) -> Check | None:
    count, every = counted(rows, methods)
    claim = f"{said}: at least {share:.0%} within 2 standard errors of the paper's, or better"
    missing = [method for method in methods if not any(row.method == method for row in rows)]
    without = f", {' and '.join(missing)} not measured" if missing else ""
    return Check(claim, f"{count} of {every}{without}", count >= share * every) if every else None


def _better(rows: Sequence[Row], one: str, other: str, share: float, claim: str) -> Check | None:
    """Of the sets and networks where both methods are, by more than a half where that is the share."""
    nll = {(row.dataset, row.network, row.method): row.mean for row in rows if row.metric == "nll"}
    pairs = [
        (value, nll[dataset, network, other])
        for (dataset, network, method), value in nll.items()
        if method == one and (dataset, network, other) in nll
    ]
    wins = sum(mine <= its for mine, its in pairs)
    held = wins == len(pairs) if share == 1 else wins > share * len(pairs)
    return Check(claim, f"{wins} of {len(pairs)}", held) if pairs else None
