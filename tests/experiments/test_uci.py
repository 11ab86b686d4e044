"""A small run of the UCI experiment: rows, report, resuming, its command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn
from typer.testing import CliRunner

import linlap.cli
from experiments.common.rows import Row
from experiments.common.run import run
from experiments.uci import __main__ as command
from experiments.uci import claims, experiment, problems, report, training
from experiments.uci.config import FULL
from experiments.uci.cost import Cost
from experiments.uci.groups import GROUPS
from experiments.uci.sets import SETS
from tests.uci_sets import CPU, TINY, put, table

SCORES = ("nll", "accuracy", "ece")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small sets in CSV files, and nothing in the cache."""
    put(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def uci(folder: Path, **changes: Any) -> experiment.Uci:
    return experiment.Uci(replace(TINY, **changes), folder, CPU)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Results of one run, the data beside them."""
    folder = tmp_path_factory.mktemp("uci")
    with pytest.MonkeyPatch.context() as patch:
        put(folder, patch)
        run(uci(folder), folder / "results", progress=False)
        yield folder


def test_rows_of_all_methods(done: Path) -> None:
    rows = json.loads((done / "results" / "results.json").read_text(encoding="utf-8"))
    assert {(row["dataset"], row["method"], row["metric"]) for row in rows} == {
        (name, method, metric) for name in TINY.sets for method in report.METHODS for metric in SCORES
    }
    assert all(row["splits"] == 2 and np.isfinite(row["mean"]) for row in rows)
    assert all(row["paper_mean"] is None for row in rows)
    nll = {(row["dataset"], row["method"]): row["mean"] for row in rows if row["metric"] == "nll"}
    for name in TINY.sets:
        assert nll[name, "gp_coupled"] == pytest.approx(nll[name, "glm_full"], rel=1e-6)
        assert nll[name, "glm_full"] < nll[name, "bnn_full"]


def test_map_scores_are_those_of_the_trained_networks(done: Path) -> None:
    """By a plain loop: train, choose δ, score."""
    rows = json.loads((done / "results" / "results.json").read_text(encoding="utf-8"))
    of, found = SETS["three"], []
    for seed in TINY.splits:
        parts = [torch.as_tensor(part) for part in problems.split(table(3), seed)]
        train, valid, test = ((part[:, :-1].float(), part[:, -1].long()) for part in parts)
        tried = []
        for d in TINY.precisions:
            model = problems.network("1x50_tanh", of, seed)
            optimizer = torch.optim.Adam(model.parameters(), TINY.step_size)
            for _ in range(TINY.steps):
                optimizer.zero_grad()
                prior = sum(p.square().sum() for p in model.parameters())
                (nn.functional.cross_entropy(model(train[0]), train[1], reduction="sum") + 0.5 * d * prior).backward()
                optimizer.step()
            with torch.no_grad():
                tried.append([float(nn.functional.cross_entropy(model(x), y)) for x, y in (valid, test)])
        found.append(min(tried)[1])
    (row,) = (r for r in rows if (r["dataset"], r["method"], r["metric"]) == ("three", "map", "nll"))
    assert row["mean"] == pytest.approx(np.mean(found), rel=1e-4)


def test_the_report_and_the_picture(done: Path) -> None:
    text = (done / "results" / "report.md").read_text(encoding="utf-8")
    assert "Everything is measured." in text
    assert all(said in text for said in report.METHODS.values())
    height, width, _ = imread(done / "results" / "uci_sweep.png").shape
    assert min(height, width) > 300


def test_a_second_run_measures_nothing(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (done / "results" / "results.json").read_bytes()
    monkeypatch.setattr(experiment, "splits_of", lambda *_: pytest.fail("a cell was measured again"))
    run(uci(done), done / "results", progress=False)
    assert (done / "results" / "results.json").read_bytes() == before


def test_a_run_broken_off_goes_on_where_it_was(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cells").mkdir()
    names = [cell.name for cell in uci(done).cells()]
    for path in (done / "results" / "cells").glob("*.*"):
        if path.stem not in names[-2:]:
            (tmp_path / "cells" / path.name).write_bytes(path.read_bytes())
    measured = []
    measure = experiment.Uci.measure

    def watched(self: Any, cell: Any, *rest: Any) -> Any:
        measured.append(cell.name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return measure(self, cell, *rest)

    monkeypatch.setattr(experiment.Uci, "measure", watched)
    with pytest.raises(KeyboardInterrupt):
        run(uci(done), tmp_path, progress=False)
    assert measured == names[-2:]
    run(uci(done), tmp_path, progress=False)
    assert measured == [*names[-2:], names[-1]]
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == json.loads(
        (done / "results" / "results.json").read_text(encoding="utf-8")
    )


def test_trained_weights_are_shared_by_the_groups(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file, or one of other settings, is none."""
    trainings = []
    fitted = training.fitted
    monkeypatch.setattr(training, "fitted", lambda *given: trainings.append(1) or fitted(*given))
    splits = problems.splits_of(SETS["two"], table(2), TINY.splits, CPU)
    of = partial(training.trained, splits, "1x50_tanh", folder=tmp_path, tick=lambda _: None)
    first = of(TINY)
    assert torch.equal(of(TINY).theta, first.theta)
    assert len(trainings) == 1
    of(replace(TINY, steps=2))
    assert len(trainings) == 2
    (tmp_path / "two-1x50_tanh.safetensors").write_bytes(b"half a fi")
    of(TINY)
    assert len(trainings) == 3


def test_settings_of_a_group_are_those_it_uses(folder: Path) -> None:
    made = {cell.group: cell for cell in uci(folder).cells() if cell.dataset == "two"}
    longer = {name: uci(folder, refine_steps=4).settings(cell) for name, cell in made.items()}
    changed = {name for name, cell in made.items() if longer[name] != uci(folder).settings(cell)}
    assert changed == {"refine_full", "refine_diag"}
    assert uci(folder).settings(made["gp"])["checksum"] == SETS["two"].checksum


def row(method: str, mean: float, paper: float | None = None, dataset: str = "glass") -> Row:
    return Row(dataset, "1x50_tanh", method, "nll", mean, 0.01, paper, None if paper is None else 0.0, 10)


def test_claims_are_held_against_the_rows_there_are() -> None:
    assert claims.held([]) == []
    rows = [row("map", 0.5, 0.5), row("glm_full", 0.53, 0.5), row("bnn_full", 0.4, 0.6), row("gp_coupled", 9.0)]
    near, order = claims.held(rows)
    assert (near.found, near.holds) == ("2 of 3, mfvi and glm_diag not measured", False)
    assert (order.found, order.holds) == ("0 of 1", False)
    refined = [row("glm_refine_full", 0.53, 0.6), row("glm_full", 0.3, None, "cancer")]
    checks = claims.held([*rows, *refined, row("glm_refine_full", 0.4, 0.39, "cancer")])
    found = ["2 of 3, mfvi and glm_diag not measured", "2 of 2, glm_refine_diag not measured", "0 of 1", "1 of 2"]
    assert [check.found for check in checks] == found
    assert [check.holds for check in checks] == [False, True, False, False]


def test_the_estimate_grows_with_the_work(folder: Path) -> None:
    small, large = (Cost(SETS[name], "1x50_tanh", FULL, CPU) for name in ("glass", "satellite"))
    for name, group in GROUPS.items():
        assert 0 < group.seconds(small) < group.seconds(large), name


def test_a_bad_file_stops_the_command_before_anything_is_measured(folder: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(linlap.cli.app, ["reproduce", "uci", "--quick", "--data", str(folder)])
    assert said.exit_code == 1
    assert "glass.csv cannot be read" in said.output
    assert "Pass --data FOLDER" in said.output


def test_some_cells_only(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(command, "FULL", TINY)
    put(done, monkeypatch)
    arguments = [
        "uci",
        "--data",
        str(done),
        "--out",
        str(tmp_path),
        "--network",
        "1x50_tanh",
        "--group",
        "laplace",
        "--device",
        "cpu",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()
    assert "2 cells to measure" in capsys.readouterr().out
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"**Partial**: 2 of {2 * len(GROUPS)} cells are measured" in text
    monkeypatch.setattr(sys, "argv", ["uci", "--out", str(tmp_path), "--report"])
    command.main()
    assert "0 cells to measure" in capsys.readouterr().out
