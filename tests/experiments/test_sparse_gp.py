"""The experiment with sparse processes end to end, small: cells, a second run that finds them, tables, a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from experiments.sparse_gp import __main__ as command
from experiments.sparse_gp import problems, report, run
from experiments.sparse_gp.config import Config
from experiments.sparse_gp.measure import EVERYTHING, MAP, SPARSE, SUBSET
from experiments.sparse_gp.rows import CHOICES, Results, Setting

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
TINY = Config(
    precisions=(1.0,),
    sizes=(4, 8),
    coupled_up_to=4,
    seeds=2,
    train=40,
    valid=20,
    steps=8,
    factors=(1.0, 10.0),
    further_factors=(100.0,),
    draws=20,
)
SHAPE = ["dataset", "network", "precision", "method", "inducing", "outputs", "factor_choice", "metric"]
VALUES = ["mean", "stderr", "seeds", "values"]


def few_digits() -> Bunch:
    digits = load_digits()
    return Bunch(images=digits.images[:80], target=digits.target[:80])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Results of one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems, "load_digits", few_digits)
        patch.setattr("experiments.sparse_gp.measure.FULL_UP_TO", 0)
        folder = tmp_path_factory.mktemp("sparse_gp")
        run.run(TINY, folder)
        yield folder


@pytest.fixture
def result(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return read


def test_rows(result: dict[str, Any]) -> None:
    rows = result["rows"]
    assert all(list(row) == SHAPE + VALUES for row in rows)
    assert {row["method"] for row in rows} == {MAP, EVERYTHING, SUBSET, SPARSE}
    assert all(row["seeds"] == [0, 1] and len(row["values"]) == 2 for row in rows)
    for row in rows:
        assert row["mean"] == pytest.approx(sum(row["values"]) / 2)
        assert row["stderr"] == pytest.approx(abs(row["values"][0] - row["values"][1]) / 2)
    assert result["environment"]["threads"] == 1
    assert result["environment"]["packages"]["torch"]


def test_more_inducing_inputs_come_closer(result: dict[str, Any]) -> None:
    found, setting = Results.of(result), Setting(1.0, "independent", "one")
    for network in TINY.networks:
        errors = [found.of_method(network, setting, SPARSE, m, "log_variance_error") for m in TINY.sizes]
        assert all(errors[1][seed] < errors[0][seed] for seed in range(2))


def test_differences_are_taken_seed_by_seed(result: dict[str, Any]) -> None:
    found = Results.of(result)
    sparse, subset = (found.of_method("cnn", found.main, name, 8, "nll") for name in (SPARSE, SUBSET))
    difference = found.difference("cnn", found.main, 8, "nll")
    assert difference.mean == pytest.approx(sum(sparse[seed] - subset[seed] for seed in range(2)) / 2)
    counted, every = found.holds(found.main, "nll")
    assert every == 4
    assert counted == sum(found.difference(n, found.main, m, "nll").mean <= 0 for n in TINY.networks for m in (4, 8))


def test_a_second_run_measures_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("a cell was measured again"))
    assert run.run(TINY, folder)["rows"] == before


def test_a_run_broken_off_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    cells.mkdir()
    names = [cell.name for cell in TINY.cells()]
    for name in names[:-1]:
        (cells / f"{name}.json").write_bytes((folder / "cells" / f"{name}.json").read_bytes())
    (cells / f"{names[-1]}.part").write_text("{", encoding="utf-8")
    measured = []

    def last(cell: Any, *_: Any) -> list[dict[str, Any]]:
        measured.append(cell.name)
        return list(json.loads((folder / "cells" / f"{cell.name}.json").read_text(encoding="utf-8"))["rows"])

    monkeypatch.setattr(run, "measure", last)
    rows = run.run(TINY, tmp_path)["rows"]
    assert measured == names[-1:]
    assert rows == json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]


def test_other_settings_are_measured_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    for path in (folder / "cells").iterdir():
        (tmp_path / "cells" / path.name).write_bytes(path.read_bytes())
    measured = []
    monkeypatch.setattr(run, "measure", lambda cell, *_: measured.append(cell.name) or [])
    run.run(replace(TINY, draws=21), tmp_path)
    assert measured == [cell.name for cell in TINY.cells()]


def test_tables_and_picture(result: dict[str, Any], tmp_path: Path) -> None:
    report.write(result, tmp_path / "tables.md", tmp_path / "pictures" / "sparse.png")
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    for said in CHOICES.values():
        assert f"factor {said}" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 4 + len(CHOICES) + 2
    assert all(line.count("|") == table[0].count("|") for table in tables for line in table)
    height, width, _ = imread(tmp_path / "pictures" / "sparse.png").shape
    assert height > width > 800


def test_the_page_gets_its_tables(result: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.insert(result, page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert report.compared(Results.of(result), Results.of(result).main) in text
    report.insert(result, page)
    assert page.read_text(encoding="utf-8") == text


def test_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "sparse.md"
    page.write_text(report.BEGIN + report.END, encoding="utf-8")
    monkeypatch.setattr(command, "RESULTS", folder)
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "PICTURE", tmp_path / "sparse.png")
    monkeypatch.setattr(sys, "argv", ["sparse_gp", "--report"])
    command.main()
    assert (tmp_path / "sparse.png").exists()
    printed = capsys.readouterr().out
    assert "Sparse − Subset" in page.read_text(encoding="utf-8")
    assert (folder / "tables.md").read_text(encoding="utf-8").strip() == printed.strip()
