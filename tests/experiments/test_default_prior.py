"""The experiment on default priors end to end, small: cells, a second run that finds them, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.default_prior import measure, problems, run
from experiments.default_prior.run import PRIORS, Config, tables

TINY = Config(seeds=(0, 1), steps=5)


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of two problems and one kind of network, in two parts as two workers measure them."""
    few = {name: problems.PROBLEMS[name] for name in ("iris", "waves")}
    for module in (measure, run):
        monkeypatch.setattr(module, "PROBLEMS", few)
    monkeypatch.setattr(run, "ACTIVATIONS", {"tanh": problems.ACTIVATIONS["tanh"]})
    run.run(TINY, tmp_path, (0, 2))
    run.run(TINY, tmp_path, (1, 2))
    monkeypatch.setattr(run, "measure", None)  # all is there: nothing is measured again
    return run.run(TINY, tmp_path)


def test_end_to_end(result: dict[str, Any]) -> None:
    rows = result["rows"]
    assert {row["prior"] for row in rows} == set(PRIORS)
    pooled = [row for row in rows if row["training"] is None and row["prior"] == "one"]
    assert [row["runs"] for row in pooled] == [4] * 6
    apart = [row["difference"] for row in rows if row["training"] is not None and row["prior"] == "one"]
    assert sum(apart) / len(apart) == pytest.approx(sum(row["difference"] for row in pooled) / len(pooled))
    text = tables(result)
    assert "| left out | " in text
    assert "| waves | " in text


@pytest.mark.parametrize("name", problems.PROBLEMS)
def test_problems(name: str) -> None:
    problem = problems.PROBLEMS[name]
    (x, y), (x_test, y_test) = problem.split(0)
    assert len(x) == len(y) == problem.train
    assert 0 < len(x_test) == len(y_test) <= 300
    assert x.mean(0).abs().max() < 1e-6
    again = problem.split(0)[0][0]
    assert bool((again == x).all())
    model = problems.network(x.shape[1], problem.outputs, "ReLU", 0).double()
    problem.likelihood.prepare(y, model(x))
