"""Figures hold what they claim, and leave matplotlib as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from matplotlib.image import imread
from torch import Tensor
from torch import distributions as td

from linlap import metrics, plotting
from linlap.errors import InputError
from linlap.integrators import Moments
from linlap.validation import Axis, Minimum


@dataclass(frozen=True)
class Slope:
    """A predictive whose mean grows along the first input only."""

    classes: bool = True

    def moments(self, x: Tensor) -> Moments:
        p = torch.sigmoid(x[:, :1]) if self.classes else 3 * x[:, :1]
        entropy = torch.zeros(len(x)) if self.classes else None
        return Moments(p, (p * (1 - p)).abs(), torch.full_like(p, 0.01), entropy, entropy)


@pytest.fixture
def points() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 2, generator=generator), torch.arange(20) % 2


@pytest.fixture
def beliefs() -> dict[str, td.Distribution]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 4, generator=generator)
    return {"sharp": td.Categorical(logits=3 * logits), "flat": td.Categorical(logits=0.2 * logits)}


@pytest.fixture(autouse=True)
def _untouched_matplotlib() -> Iterator[None]:
    before = dict(matplotlib.rcParams)
    yield
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_plane_lies_the_right_way_round(points: tuple[Tensor, Tensor]) -> None:
    plane = plotting.on_plane(Slope(), points[0], limit=2.0, points=9)
    assert plane.mean.shape == (9, 9)
    assert torch.equal(plane.mean, plane.mean[:1].expand(9, 9))  # the second input goes up the rows
    assert plane.mean[0, 0] == torch.sigmoid(torch.tensor(-2.0))
    assert plane.mean[0, -1] == torch.sigmoid(torch.tensor(2.0))
    torch.testing.assert_close(plane.deviation.square(), plane.aleatoric + plane.epistemic)


def test_planes_share_colours_down_a_column(points: tuple[Tensor, Tensor]) -> None:
    plane = plotting.on_plane(Slope(), points[0], points=6)
    figure = plotting.planes({"A": plane, "B": plane}, *points, title="both")
    axes = [axis for axis in figure.axes if axis.images]
    assert [axis.get_ylabel() for axis in axes if axis.get_ylabel()] == ["A", "B"]
    titles = [axis.get_title() for axis in axes if axis.get_title()]
    assert titles == ["predictive mean", "standard deviation", "aleatoric variance", "epistemic variance"]
    limits = [axis.images[0].get_clim() for axis in axes]
    assert limits == [(0, 1), (0, 0.5), (0, 0.25), (0, 0.25)] * 2
    assert len(figure.axes) - len(axes) == 4  # one bar of colours a column


def test_planes_of_regression_take_their_scales_from_the_data(points: tuple[Tensor, Tensor]) -> None:
    plane = plotting.on_plane(Slope(classes=False), points[0], limit=2.0, points=6)
    figure = plotting.planes({"only": plane}, points[0], torch.zeros(20))
    low, high = figure.axes[0].images[0].get_clim()
    assert (low, high) == (-6, 6)


def test_planes_refuse_other_inputs(points: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match=r"\[n, 2\]"):
        plotting.planes({}, *points)
    plane = plotting.on_plane(Slope(), points[0], points=4)
    with pytest.raises(InputError, match=r"shape \(20, 3\)"):
        plotting.planes({"A": plane}, torch.zeros(20, 3), points[1])


def test_reliability_names_each_error(beliefs: dict[str, td.Distribution]) -> None:
    y = beliefs["sharp"].sample()
    figure = plotting.reliability(beliefs, y)
    upper, lower = figure.axes
    words = [text.get_text() for text in upper.get_legend().get_texts()]
    assert words[:2] == [f"{name}: ECE {metrics.ece(p, y):.3f}" for name, p in beliefs.items()]
    heights = sum(bar.get_height() for bar in lower.patches)
    assert heights == pytest.approx(len(beliefs))
    with pytest.raises(InputError, match="at least one"):
        plotting.reliability({}, y)


def test_entropies_state_the_auc(beliefs: dict[str, td.Distribution]) -> None:
    outside = {name: td.Categorical(probs=torch.full((50, 4), 0.25)) for name in beliefs}
    figure = plotting.entropies(beliefs, outside, title="entropy")
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == [f"{name}: OOD-AUC {metrics.ood_auc(p, outside[name]):.3f}" for name, p in beliefs.items()]
    with pytest.raises(InputError, match="must be the same"):
        plotting.entropies(beliefs, {})


def test_figures_are_saved_without_a_window(beliefs: dict[str, td.Distribution], tmp_path: Path) -> None:
    plotting.reliability(beliefs, beliefs["flat"].sample()).savefig(tmp_path / "curve.png")
    assert imread(tmp_path / "curve.png").std() > 0.05


def test_scores_are_drawn_where_they_lie() -> None:
    axis = Axis("prior precision δ", (10.0, 0.1, 1.0))
    heat = Axis("temperature T", (1.0, 2.0))
    flat = torch.tensor([3.0, 2.0, 1.0])
    curve = plotting.scores(Minimum(None, "nll", flat, (axis,), (), (2,), ())).axes[0]
    line, star = curve.lines
    assert list(line.get_xdata()) == [0.1, 1.0, 10.0]
    assert list(line.get_ydata()) == [2.0, 1.0, 3.0]
    assert (float(star.get_xdata()[0]), float(star.get_ydata()[0])) == (1.0, 1.0)
    assert curve.get_xscale() == "log"
    assert curve.get_xlabel() == axis.name
    assert curve.get_ylabel() == "nll"
    both = torch.stack([flat, flat + 10], 1)
    found = Minimum(None, "nll", both, (axis, heat), (), (2, 0), ())
    panel = plotting.scores(found, title="scores").axes[0]
    (mesh,) = panel.collections
    assert mesh.get_array().tolist() == [[2.0, 1.0, 3.0], [12.0, 11.0, 13.0]]
    corners = mesh.get_coordinates()
    assert list(corners[0, :, 0]) == pytest.approx([10**-1.5, 10**-0.5, 10**0.5, 10**1.5])
    assert panel.get_title() == "scores"
    assert panel.get_ylabel() == heat.name


def test_scores_without_an_order_are_drawn_by_their_place() -> None:
    axis = Axis("place in the grid", (0.0, 1.0), ordered=False)
    found = Minimum(None, "ece", torch.tensor([[1.0], [2.0]]), (axis, Axis("temperature T", (1.0,))), (), (0, 0), ())
    panel = plotting.scores(found).axes[0]
    assert panel.get_xscale() == "linear"
    assert panel.collections[0].get_coordinates()[0, :, 0].tolist() == [-0.5, 0.5, 1.5]
