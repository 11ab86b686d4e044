"""What experiments share: cells that are kept and found again, rows beside the paper's, and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import linlap.cli
from experiments.common import cells, rows, tables
from experiments.common import run as runs
from experiments.common.cells import Measured, Store, Tick
from experiments.common.checks import Check
from experiments.common.rows import Mean, Row
from experiments.common.run import Experiment, Found


@dataclass(frozen=True)
class Part:
    split: int

    @property
    def name(self) -> str:
        return f"part-{self.split}"

    @property
    def about(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Study(Experiment[Part]):
    """Three parts whose score is their number times `scale`, each with an array."""

    scale: float = 1.0
    measured: list[int] = None  # type: ignore[assignment]
    fails_at: int | None = None

    def __post_init__(self) -> None:
        self.measured = []

    def cells(self) -> Sequence[Part]:
        return [Part(split) for split in range(3)]

    def settings(self, cell: Part) -> dict[str, Any]:
        return {"scale": self.scale, "sizes": (1, 2)}

    def seconds(self, cell: Part) -> float:
        return 100.0

    def measure(self, cell: Part, store: Store, tick: Tick) -> Measured:
        tick("counting")
        if cell.split == self.fails_at:
            raise KeyboardInterrupt
        self.measured.append(cell.split)
        row = {"dataset": "glass", "network": "1x50_tanh", "metric": "nll", "value": self.scale * cell.split}
        return Measured([row | {"method": "map"}, row | {"method": "own"}], {"line": np.arange(cell.split)})

    def checks(self, found: Found) -> list[Check]:
        best = found.rows[0].mean
        return [Check("the second is better", f"{best:.1f}", True), Check("nothing is worse", f"{best:.1f}", False)]

    def report(self, found: Found, out: Path) -> None:
        (out / "report.md").write_text(tables.claims(self.checks(found)) + tables.origin(found.environment))


def run(study: Study, out: Path) -> Found:
    return runs.run(study, out, progress=False)


def test_rows_lie_beside_the_papers(tmp_path: Path) -> None:
    found = run(Study(), tmp_path)
    read = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    theirs = rows.paper()["glass", "1x50_tanh", "map", "nll"]
    about = {"dataset": "glass", "network": "1x50_tanh"}
    score = {"metric": "nll", "mean": 1.0, "stderr": pytest.approx(1 / math.sqrt(3))}
    assert read == [
        about | {"method": "map"} | score | {"paper_mean": theirs.mean, "paper_stderr": theirs.stderr, "splits": 3},
        about | {"method": "own"} | score | {"paper_mean": None, "paper_stderr": None, "splits": 3},
    ]
    assert list(read[0]) == list(Row.__dataclass_fields__)
    assert rows.read_rows(tmp_path / "results.json") == found.rows
    environment = json.loads((tmp_path / "environment.json").read_text(encoding="utf-8"))
    assert environment["cpu"]
    assert environment["packages"]["torch"]
    assert environment["seconds"] >= 0
    assert "| nothing is worse | **no** | 1.0 |" in (tmp_path / "report.md").read_text(encoding="utf-8")
    checks = json.loads((tmp_path / "checks.json").read_text(encoding="utf-8"))
    assert checks[0] == {"claim": "the second is better", "found": "1.0", "holds": True}


def test_what_is_broken_off_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Study(fails_at=2), tmp_path)
    assert not (tmp_path / "results.json").exists()
    again = Study()
    found = run(again, tmp_path)
    assert again.measured == [2]
    assert found.rows == run(Study(), tmp_path / "at once").rows
    third = Study()
    assert run(third, tmp_path).rows == found.rows
    assert third.measured == []


def test_other_settings_are_measured_anew(tmp_path: Path) -> None:
    run(Study(), tmp_path)
    other = Study(scale=2.0)
    assert run(other, tmp_path).rows[0].mean == 2.0
    assert other.measured == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"config": {"scale": 1.0, "sizes": [1, 2]}}'])
def test_a_damaged_cell_is_measured_anew(text: str, tmp_path: Path) -> None:
    run(Study(), tmp_path)
    (tmp_path / "cells" / "part-1.json").write_text(text, encoding="utf-8")
    again = Study()
    run(again, tmp_path)
    assert again.measured == [1]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"PK\x03\x04 half")])
def test_a_cell_without_its_arrays_is_measured_anew(damage: Any, tmp_path: Path) -> None:
    run(Study(), tmp_path)
    damage(tmp_path / "cells" / "part-2.npz")
    again = Study()
    found = run(again, tmp_path)
    assert again.measured == [2]
    assert np.array_equal(found.store.arrays("part-2")["line"], [0, 1])


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    run(Study(), tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert not cells.missing(Study().cells(), Study().settings, Store(tmp_path / "cells"))


def test_counting_tells_now_and_then() -> None:
    told: list[str] = []
    step = cells.counting(told.append, "sample", every=3)
    for _ in range(7):
        step()
    assert told == ["sample 3", "sample 6"]


def row(mean: float, stderr: float | None, metric: str = "nll", paper: Mean | None = None) -> Row:
    theirs = paper or Mean(1.0, 0.3)
    return Row("glass", "1x50_tanh", "map", metric, mean, stderr, theirs.mean, theirs.stderr, 10)


def test_differences_are_in_combined_standard_errors() -> None:
    assert row(2.0, 0.4).difference == pytest.approx(2.0)
    assert row(0.5, None).difference == pytest.approx(-0.5 / 0.3)
    assert row(1.0, None, paper=Mean(1.0, None)).difference == 0.0
    assert Row("glass", "1x50_tanh", "own", "nll", 1.0, 0.1, None, None, 10).difference is None


def test_better_than_the_paper_reproduces_it() -> None:
    assert row(1.9, 0.4).reproduces()
    assert not row(2.1, 0.4).reproduces()
    assert row(-9.0, 0.4).reproduces()
    assert row(9.0, 0.4, "accuracy").reproduces()
    assert not row(-0.1, 0.4, "accuracy").reproduces()
    assert Row("glass", "1x50_tanh", "own", "nll", 1.0, 0.1, None, None, 10).reproduces() is None


def test_tables() -> None:
    text = tables.compared([row(2.0, 0.4), row(-0.5, 0.4, "accuracy")])
    lines = text.splitlines()
    assert lines[1] == "| --- | --- | --- | --- | ---: | ---: | ---: | --- |"
    assert lines[2] == "| glass | 1x50_tanh | map | NLL | 2.000 ± 0.400 | 1.000 ± 0.300 | +2.0 | yes |"
    assert lines[3].endswith("| −0.500 ± 0.400 | 1.000 ± 0.300 | −3.0 | **no** |")
    text = tables.pivot([row(2.0, 0.4), row(0.5, None, "accuracy")], "nll")
    assert text.splitlines()[2] == "| map | 2.000 ± 0.400 |"
    assert tables.table(["a", "b"], []) == "| a | b |\n| --- | --- |"


def test_every_number_of_the_paper_is_there_once() -> None:
    known = rows.paper()
    assert len(known) == 8 * 2 * 3 * 7 == len(json.loads(rows.PAPER.read_text(encoding="utf-8")))


def reproduce(*args: str) -> Any:
    return CliRunner().invoke(linlap.cli.app, ["reproduce", *args], env={"COLUMNS": "120"})


@pytest.fixture
def a_study(monkeypatch: pytest.MonkeyPatch) -> Study:
    study = Study()
    monkeypatch.setattr(runs, "named", lambda name, quick, data: study)
    return study


def test_the_command_says_what_it_will_do(a_study: Study, tmp_path: Path) -> None:
    done = reproduce("toy", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "3 to measure, about 5 minutes." in done.output
    assert "holds: the second is better (1.0)" in done.output
    assert "DOES NOT HOLD: nothing is worse (1.0)" in done.output
    assert "2 rows in" in done.output
    (tmp_path / "cells" / "part-0.json").unlink()
    assert (
        "2 of 3 cells are there already; 1 to measure, about 2 minutes."
        in reproduce("toy", "--out", str(tmp_path)).output
    )
    assert "All 3 cells are there already" in reproduce("toy", "--out", str(tmp_path)).output
    assert a_study.measured == [0, 1, 2, 0]
    reproduce("toy", "--out", str(tmp_path), "--fresh")
    assert a_study.measured == [0, 1, 2, 0, 0, 1, 2]


def test_the_command_can_be_broken_off(a_study: Study, tmp_path: Path) -> None:
    a_study.fails_at = 1
    done = reproduce("toy", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "the same command goes on from here" in done.output
    assert (tmp_path / "cells" / "part-0.json").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("tyo",), "no experiment is called 'tyo'; there are banana, toy."),
        (("toy", "--data", "nowhere"), "--data nowhere is no folder"),
    ],
    ids=["unknown name", "no data folder"],
)
def test_bad_input_is_named(args: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "names", lambda: ["banana", "toy"])
    done = reproduce(*args)
    assert done.exit_code == 1
    assert said in " ".join(done.output.split())


def test_results_need_a_folder(a_study: Study) -> None:
    done = reproduce("toy", "--out", __file__)
    assert done.exit_code == 1
    assert "cannot be a folder" in " ".join(done.output.split())


def test_without_the_repository_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linlap.cli, "__file__", str(tmp_path / "linlap" / "cli.py"))
    done = reproduce("toy")
    assert done.exit_code == 1
    assert "this command needs the repository of linlap" in " ".join(done.output.split())
