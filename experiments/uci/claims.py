"""The paper's claims about these sets, held against rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from experiments.common.checks import Check
from experiments.common.rows import Row

UNREFINED = ("map", "mfvi", "bnn_full", "glm_full", "glm_diag")
REFINED = ("glm_refine_full", "glm_refine_diag")


def held(rows: Sequence[Row]) -> list[Check]:
    """Of the cells that are there."""
    checks = [
        _reproduced(rows, UNREFINED, 0.95, "MAP, MFVI, BNN, GLM and its diagonal"),
        _reproduced(rows, REFINED, 0.90, "the refined GLMs"),
    ]
    better = list(_pairs(rows, "glm_full", "bnn_full"))
    wins = sum(glm < bnn for glm, bnn in better)
    said = "GLM has a smaller NLL than BNN on every set, for every network"
    checks.append(Check(said, f"{wins} of {len(better)}", wins == len(better) > 0))
    refined = list(_pairs(rows, "glm_refine_full", "glm_full"))
    wins = sum(fine <= coarse for fine, coarse in refined)
    said = "the refined GLM is at least as good as GLM in NLL on most sets"
    return [*checks, Check(said, f"{wins} of {len(refined)}", 2 * wins > len(refined))]


def counted(rows: Iterable[Row], methods: Sequence[str]) -> tuple[int, int]:
    """How many of the scores that the paper has are reproduced, and how many there are."""
    found = [row.reproduces() for row in rows if row.method in methods and row.paper_mean is not None]
    return sum(map(bool, found)), len(found)


def _reproduced(rows: Sequence[Row], methods: Sequence[str], share: float, said: str) -> Check:
    count, every = counted(rows, methods)
    claim = f"{said}: at least {share:.0%} within 2 standard errors of the paper's, or better"
    return Check(claim, f"{count} of {every}", count >= share * every > 0)


def _pairs(rows: Iterable[Row], one: str, other: str) -> Iterator[tuple[float, float]]:
    """NLL of two methods, wherever both are there."""
    nll = {(row.dataset, row.network, row.method): row.mean for row in rows if row.metric == "nll"}
    for (dataset, network, method), value in nll.items():
        if method == one and (dataset, network, other) in nll:
            yield value, nll[dataset, network, other]
