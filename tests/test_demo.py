"""The demo end to end in its quick form, and the parts that keep it honest and its files whole."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console
from typer.testing import CliRunner

from linlap.baselines import train_map
from linlap.cli import app
from linlap.likelihoods import Bernoulli
from linlap.report import demo
from linlap.report.comparison import Scores, Verdict, table
from linlap.report.datasets import banana, digits
from linlap.report.files import save_picture
from linlap.report.training import falling, tanh_network

PICTURES = ("banana.png", "digits-reliability.png", "digits-entropy.png")


@dataclass(frozen=True)
class Finished:
    output: str
    outcome: demo.Outcome
    out: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`linlap demo --quick`, run once."""
    out = tmp_path_factory.mktemp("demo") / "pictures"
    outcomes: list[demo.Outcome] = []
    run = demo.run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run", lambda *args, **kwargs: outcomes.append(run(*args, **kwargs)))
        done = CliRunner().invoke(app, ["demo", "--quick", "--out", str(out)], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    return Finished(done.output, outcomes[0], out)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn(finished: Finished, name: str) -> None:
    picture = imread(finished.out / name)
    assert min(picture.shape[:2]) >= 300
    assert picture.std() > 0.05


def test_nothing_else_lies_in_the_folder(finished: Finished) -> None:
    assert {path.name for path in finished.out.iterdir()} == set(PICTURES)


def test_table_has_a_line_for_each_predictive(finished: Finished) -> None:
    rows = finished.outcome.rows
    assert len(rows) == 2 * 3 * 3
    for row in rows:
        assert 0 <= row.accuracy <= 1
        assert (row.ood_auc is None) == (row.problem == "banana")
        assert any(row.predictive in line and f"{row.nll:.3f}" in line for line in finished.output.splitlines())


def test_claim_is_computed_from_the_table(finished: Finished) -> None:
    verdict = Verdict.of(finished.outcome.rows)
    assert verdict == finished.outcome.verdict
    assert "".join(str(verdict).split()) in "".join(finished.output.split())


@pytest.mark.slow
def test_whole_demo_shows_the_point_in_time(tmp_path: Path) -> None:
    outcome = demo.run(tmp_path / "out", console=Console(file=StringIO()))
    assert outcome.verdict.holds, str(outcome.verdict)
    assert outcome.seconds < 60


def scores(*nlls: float) -> list[Scores]:
    """Rows of one posterior: MAP, BNN, GLM."""
    names = ("MAP", "BNN", "GLM")
    return [Scores("set", "Full", name, 0.9, nll, 0.1, None) for name, nll in zip(names, nlls, strict=True)]


def other(rows: list[Scores]) -> list[Scores]:
    return [Scores(r.problem, "Diagonal", r.predictive, r.accuracy, r.nll, r.ece, None) for r in rows]


@pytest.mark.parametrize(
    ("nlls", "holds"),
    [((0.2, 0.6, 0.21), True), ((0.2, 0.21, 0.2), False), ((0.2, 0.6, 0.5), False), ((0.2, 0.6, 0.7), False)],
    ids=["as in the paper", "BNN keeps up", "GLM underfits too", "GLM is worse"],
)
def test_claim_follows_the_numbers(nlls: tuple[float, ...], holds: bool) -> None:
    verdict = Verdict.of(scores(*nlls))
    assert verdict.holds is holds
    assert ("not the paper's point" in str(verdict)) is not holds


def test_claim_names_the_posteriors_that_lie_between() -> None:
    verdict = Verdict.of(scores(0.2, 0.6, 0.21) + other(scores(0.2, 0.6, 0.4)))
    assert verdict.holds
    assert "1 of 2 posteriors; with set Diagonal it lies between the two, at 2.00" in str(verdict)


def test_table_prints_every_score() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(table(scores(0.2, 0.6, 0.21)))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert sum("0.900" in line for line in lines) == 3


def test_data_follow_the_seed() -> None:
    assert torch.equal(banana(3).x, banana(3).x)
    assert not torch.equal(banana(3).x, banana(4).x)
    first, second = digits(0), digits(0)
    assert first.shift is not None
    assert second.shift is not None
    assert torch.equal(first.shift.x, second.shift.x)


def test_shuffled_digits_keep_their_grey_values() -> None:
    problem = digits(0)
    assert problem.shift is not None
    assert torch.equal(problem.shift.x.sort(-1).values, problem.x_test.sort(-1).values)


def test_training_ends_at_the_maximum_of_the_posterior() -> None:
    """Where −Σ log p(y | f) + δ/2 ‖θ‖² has no slope; torch's generator and threads stay as they were."""
    problem, precision = banana(train=60, test=2), 2.0
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    untrained = tanh_network((2, 1), seed=0)
    model = train_map(
        untrained, (problem.x, problem.y), Bernoulli(), precision, steps=600, rate=falling(0.1, 600), progress=False
    )
    logits = model(problem.x)[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, problem.y, reduction="sum")
    weights = list(model.parameters())
    loss = loss + 0.5 * precision * sum((p**2).sum() for p in weights)
    slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
    assert slope.abs().max() < 1e-2
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("module", ["matplotlib", "sklearn"])
def test_missing_extras_are_named(module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert module in done.output
    assert "pip install 'linlap[plot,sklearn]'" in done.output
    assert not (tmp_path / "out").exists()


def test_a_file_cannot_be_the_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    done = CliRunner().invoke(app, ["demo", "--quick", "--out", str(tmp_path / "taken")])
    assert done.exit_code == 1
    assert "cannot be a folder" in done.output


def test_interrupted_demo_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train_map", interrupt)
    done = CliRunner().invoke(app, ["demo", "--quick", "--out", str(tmp_path / "out")])
    assert done.exit_code != 0
    assert not (tmp_path / "out").exists()


def test_interrupted_picture_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_picture(Figure(figsize=(1, 1)), tmp_path / "picture.png")
    old = path.read_bytes()

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_picture(Figure(figsize=(2, 2)), path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("linlap ")
