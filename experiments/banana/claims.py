"""What the paper says of the banana, held against what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.common.checks import Check
from experiments.common.rows import Row

Values = dict[tuple[str, str, str], float]


def checks(rows: Sequence[Row]) -> list[Check]:
    """Each claim for the networks there are."""
    value = {(row.network, row.method, row.metric): row.mean for row in rows}
    networks = list(dict.fromkeys(row.network for row in rows if row.method == "glm_full"))
    return [*_underfits(value, networks), *_away_from_data(value, networks), *_structures(value, networks)]


def _each(value: Values, networks: Sequence[str], method: str, metric: str) -> list[float]:
    return [value[network, method, metric] for network in networks]


def _said(networks: Sequence[str], **columns: Sequence[float]) -> str:
    names = list(columns)
    lines = zip(networks, *columns.values(), strict=True)
    return "; ".join(
        f"{network}: " + ", ".join(f"{name} {v:.3f}" for name, v in zip(names, values, strict=True))
        for network, *values in lines
    )


def _underfits(value: Values, networks: Sequence[str]) -> Iterator[Check]:
    alone, bnn, glm = (_each(value, networks, method, "nll") for method in ("map", "bnn_full", "glm_full"))
    yield Check(
        "BNN underfits severely, GLM with the same posterior does not",
        f"NLL on test data: {_said(networks, MAP=alone, BNN=bnn, GLM=glm)}",
        all(b > 1.5 * m and g < 1.25 * m for m, b, g in zip(alone, bnn, glm, strict=True)),
    )
    yield Check(
        "The deeper the network, the worse BNN is",
        f"NLL of BNN: {_said(networks, full=bnn)}",
        bnn == sorted(bnn),
    )


def _away_from_data(value: Values, networks: Sequence[str]) -> Iterator[Check]:
    alone, glm = (_each(value, networks, method, "far_deviation") for method in ("map", "glm_full"))
    yield Check(
        "Away from data GLM is less certain than MAP",
        f"standard deviation far from data: {_said(networks, MAP=alone, GLM=glm)}",
        all(m < g for m, g in zip(alone, glm, strict=True)),
    )
    near, far = (_each(value, networks, "glm_full", f"{where}_epistemic") for where in ("near", "far"))
    yield Check(
        "The epistemic variance of GLM lies away from data",
        f"mean epistemic variance: {_said(networks, near=near, far=far)}",
        all(f > 2 * n for n, f in zip(near, far, strict=True)),
    )
    for name, deviations in (("MAP", alone), ("GLM", glm)):
        yield Check(
            f"The deeper the network, the more certain {name} is",
            f"standard deviation far from data: {_said(networks, **{name: deviations})}",
            deviations == sorted(deviations, reverse=True),
        )
    known = [network for network in networks if (network, "mfvi", "far_deviation") in value]
    mfvi, glm = (_each(value, known, method, "far_deviation") for method in ("mfvi", "glm_full"))
    yield Check(
        "Away from data MFVI is more certain than GLM",
        f"standard deviation far from data: {_said(known, MFVI=mfvi, GLM=glm)}",
        all(m < g for m, g in zip(mfvi, glm, strict=True)),
    )


def _structures(value: Values, networks: Sequence[str]) -> Iterator[Check]:
    full, diag = (_each(value, networks, f"glm_{kind}", "far_epistemic") for kind in ("full", "diag"))
    refined = [_each(value, networks, f"glm_refine_{kind}", "far_epistemic") for kind in ("full", "diag")]
    yield Check(
        "Refinement makes the diagonal posterior more certain away from data, the full one similar to what it was",
        "epistemic variance far from data: "
        + _said(networks, full=full, refined=refined[0], diagonal=diag, **{"diagonal refined": refined[1]}),
        all(r < d for r, d in zip(refined[1], diag, strict=True))
        and all(abs(r - f) < 0.5 * f for r, f in zip(refined[0], full, strict=True)),
    )
    scores = [_each(value, networks, f"glm_{kind}", "nll") for kind in ("full", "diag")]
    yield Check(
        "With the diagonal alone the Laplace posterior is underconfident",
        f"NLL on test data: {_said(networks, full=scores[0], diagonal=scores[1])}",
        all(d > f for f, d in zip(*scores, strict=True)),
    )
