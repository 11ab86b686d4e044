"""The banana end to end, small; its data, its splits, its measures of the plane."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import Tensor
from typer.testing import CliRunner

import linlap as ll
from experiments.banana import measure
from experiments.banana.config import LAPLACE, MAP, MFVI, REFINED, Cell, Config
from experiments.banana.data import CRESCENTS, POINTS, Points, points
from experiments.banana.experiment import Banana, make
from experiments.banana.measure import Problem, around, full, trained
from experiments.common.cells import Store
from experiments.common.run import Found, run
from linlap.cli import app
from linlap.plotting import Plane

CONFIG = Config(
    size=30,
    steps=60,
    precisions=(0.1, 1.0),
    precisions_of_one_layer=(0.05, 0.2),
    precisions_of_mfvi=(0.01, 0.1),
    samples=20,
    refinements=5,
    points=12,
    hmc_samples=6,
    hmc_warmup=6,
    hmc_chains=2,
)


def some() -> Points:
    every = points(None)
    return Points("some", every.x[:150], every.y[:150])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("banana")


@pytest.fixture(scope="module")
def banana() -> Banana:
    return Banana(some(), CONFIG, layers=(1, 2), splits=2)


@pytest.fixture(scope="module")
def found(banana: Banana, out: Path) -> Found:
    """One run."""
    return run(banana, out, progress=False)


def test_every_method_has_its_scores(found: Found, banana: Banana) -> None:
    methods = {row.method for row in found.rows if row.network == "2x50_tanh"}
    kinds = {f"{kind}_{of}" for kind in ("glm", "bnn", "glm_refine") for of in ("full", "diag")}
    assert methods == {"map", "mfvi", *kinds}
    assert "hmc" in {row.method for row in found.rows if row.network == "1x50_tanh"}
    for row in found.rows:
        first = row.method == "hmc" or "near" in row.metric or "far" in row.metric
        assert row.splits == (1 if first else 2)
        assert row.paper_mean is None
        assert row.dataset == "some"
        assert np.isfinite(row.mean)


def test_pictures_and_page(found: Found, banana: Banana, out: Path) -> None:
    text = (out / "report.md").read_text(encoding="utf-8")
    for name in ("predictives_1x50_tanh", "predictives_2x50_tanh", "posteriors_2x50_tanh"):
        picture = imread(out / f"{name}.png")
        assert min(picture.shape[:2]) >= 500
        assert f"({name}.png)" in text
    assert "HMC, 6 draws from each of 2 chains" in text
    claims = json.loads((out / "checks.json").read_text(encoding="utf-8"))
    assert [claim["claim"] for claim in claims] == [check.claim for check in banana.checks(found)]
    assert all(claim["claim"] in text for claim in claims)


def test_more_splits_measure_only_the_new_ones(
    found: Found, banana: Banana, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(cell: Cell, *_: Any) -> Any:
        raise KeyboardInterrupt(cell.name)

    monkeypatch.setattr("experiments.banana.experiment.measure", stopped)
    monkeypatch.setattr(Banana, "report", lambda *_: None)
    assert run(banana, out, progress=False).rows == found.rows
    with pytest.raises(KeyboardInterrupt, match="some-1x50_tanh-map-2"):
        run(replace(banana, splits=3), out, progress=False)


def test_other_points_are_measured_anew(banana: Banana) -> None:
    cell = banana.cells()[0]
    other = replace(banana, points=replace(banana.points, x=banana.points.x + 1))
    assert other.settings(cell) != banana.settings(cell)


def test_the_network_is_found_again(found: Found, banana: Banana) -> None:
    cell = Cell("some", 2, REFINED, 1)
    problem = Problem.of(cell, CONFIG, banana.points)
    model, precision = trained(problem, found.store)
    kept = found.store.arrays(Cell("some", 2, MAP, 1).name)
    assert precision == float(kept["precision"])
    with torch.no_grad():
        p = torch.sigmoid(model(problem.test[0]).squeeze(-1))
    nll = -torch.where(problem.test[1] == 1, p, 1 - p).log().mean()
    (record,) = (one for one in found.records if one["cell"] == cell.about | {"group": MAP})
    values = {row["metric"]: row["value"] for row in record["rows"]}
    assert values["nll"] == pytest.approx(float(nll), rel=1e-4)


def test_the_precision_is_that_of_least_validation_loss(found: Found, banana: Banana) -> None:
    problem = Problem.of(Cell("some", 1, MAP, 0), CONFIG, banana.points)
    grid, rate = CONFIG.precisions_of_one_layer, CONFIG.rate_at(CONFIG.rate)
    losses = []
    for model, d in zip(problem.networks(), grid, strict=True):
        one = ll.train_map(model, problem.train, ll.Bernoulli(), d, steps=CONFIG.steps, rate=rate, progress=False)
        f, y = one(problem.valid[0]).detach().squeeze(-1), problem.valid[1]
        losses.append(float(torch.nn.functional.binary_cross_entropy_with_logits(f, y)))
    _, precision = trained(problem, found.store)
    assert precision == grid[int(np.argmin(losses))]


def test_few_directions_are_the_full_covariance(found: Found, banana: Banana) -> None:
    """30 data with one output each inform at most 30 directions of the weights."""
    problem = Problem.of(Cell("some", 1, LAPLACE, 0), CONFIG, banana.points)
    model, precision = trained(problem, found.store)
    assert isinstance(full(problem), ll.LowRank)
    laws = [
        ll.laplace(model, problem.train, ll.Bernoulli(), structure, precision, progress=False).latent(problem.test[0])
        for structure in (full(problem), ll.Full())
    ]
    assert torch.allclose(laws[0].cov, laws[1].cov, rtol=1e-3)


def test_mean_field_inference_of_three_layers_is_narrow() -> None:
    networks = [cell.network for cell in Banana(some(), CONFIG).cells() if cell.group == MFVI]
    assert networks == ["1x50_tanh", "2x50_tanh", "3x5_tanh"]


def test_splits_have_their_sizes_and_share_nothing() -> None:
    every = points(None)
    numbered = Points(every.name, torch.arange(2.0 * POINTS).reshape(POINTS, 2), every.y)
    parts = numbered.split(0, 265)
    assert [len(x) for x, _ in parts] == [265, 265, POINTS - 530]
    rows = torch.cat([x[:, 0] for x, _ in parts])
    assert len(rows.unique()) == POINTS
    assert all(abs(float(y.mean() - every.y.mean())) < 0.01 for _, y in parts)
    assert not torch.equal(parts[0][0], numbered.split(1, 265)[0][0])


def test_the_schedule_and_the_grids_are_the_papers() -> None:
    config = Config()
    rate = config.rate_at(config.rate)
    assert [rate(step) for step in (0, 2399, 2400, 2799, 2800)] == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3, 1e-4])
    assert config.grid(Cell("banana", 2, MAP, 0))[::9] == (0.1, 2.0)
    assert config.grid(Cell("banana", 1, MAP, 0))[::9] == (0.02, 0.4)
    assert config.grid(Cell("banana", 2, MFVI, 0))[::9] == (0.001, 1.0)
    network = Problem.of(Cell("some", 3, MAP, 0), CONFIG, some()).networks()[0]
    assert sum(p.numel() for p in network.parameters()) == Cell("some", 3, MAP, 0).weights == 5301


def test_near_and_far() -> None:
    """One training point in the plane's lower right: only there it is near."""
    x = torch.tensor([[3.0, -3.0]])
    line = torch.linspace(-4, 4, 81)
    epistemic = ((line[None, :] - 3) ** 2 + (line[:, None] + 3) ** 2 > 0.3).float()  # rows go up, columns across
    plane = Plane(epistemic, torch.zeros_like(epistemic), epistemic, 4.0, True)
    found = dict(around(plane, x))
    assert found["near_epistemic"] == 0
    assert found["far_epistemic"] == 1
    assert found["far_deviation"] == 1


def test_made_points_look_like_the_banana() -> None:
    made = points(None)
    assert made.name == CRESCENTS
    assert made.x.shape == (POINTS, 2)
    assert set(made.y.tolist()) == {0.0, 1.0}
    assert made.x.abs().max() < 6


def written(folder: Path, table: Tensor | None = None, text: str | None = None) -> Path:
    lines = [] if table is None else [",".join(f"{value:g}" for value in row) for row in table.tolist()]
    (folder / "banana.csv").write_text("\n".join(["x1,x2,label", *lines]) if text is None else text, encoding="utf-8")
    return folder


def test_points_of_a_folder(tmp_path: Path) -> None:
    every = points(None)
    table = torch.column_stack([every.x, every.y])
    read = points(written(tmp_path, table))
    assert read.name == "banana"
    assert torch.allclose(read.x, every.x, atol=1e-4)
    assert torch.equal(read.y, every.y)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("x1,x2,label\n1,2,0\n1,b,0\n", "is damaged"),
        ("x1,x2,label\n1,2,0\n", "holds 1 × 3 numbers"),
        ("", "holds 0 × "),
        ("x1,x2,label\n" + "1,2,3\n" * POINTS, "or other labels"),
        ("x1,x2,label\n" + "1,nan,1\n" * POINTS, "or other labels"),
    ],
    ids=["missing", "not numbers", "short", "empty", "labels", "nan"],
)
def test_damaged_files_are_named(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        written(tmp_path, text=text)
    done = CliRunner().invoke(app, ["reproduce", "banana", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    output = " ".join(done.output.split())
    assert done.exit_code == 1
    assert said in output
    assert "banana.csv" in output
    assert not (tmp_path / "out").exists()


def test_quick_is_one_split_of_fewer_steps() -> None:
    quick, whole = make(True, None), make(False, None)
    assert len(quick.cells()) < len(whole.cells())
    assert sum(map(quick.seconds, quick.cells())) < 0.25 * sum(map(whole.seconds, whole.cells()))


def test_cells_are_kept_by_what_they_are_about(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cell = Cell("some", 1, MAP, 0)
    with pytest.raises(FileNotFoundError, match="some-1x50_tanh-map-0"):
        measure.measure(replace(cell, group=LAPLACE), CONFIG, some(), store, lambda _: None)
