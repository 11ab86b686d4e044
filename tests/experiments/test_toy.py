"""The toy end to end, small; its laws and posteriors against plain formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn

from experiments.common.run import Found, run
from experiments.toy.claims import GRID, HMC, of_weights
from experiments.toy.experiment import Toy, make
from experiments.toy.laws import AT, INPUTS, LEVELS, Law
from experiments.toy.posteriors import DAMPENED, GAUSSIAN, GGN, HESSIAN, KRON_DAMPENED, gaussian, grid
from experiments.toy.problem import PRECISION, X, Y, inputs, log_joint, outputs, trained
from linlap.types import Gaussian

TINY = Toy(samples=1500, hmc_samples=400, points=61, steps=600)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.fixture(scope="module")
def found(out: Path) -> Found:
    """One run."""
    return run(TINY, out, progress=False)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained()


def test_every_claim_holds(found: Found) -> None:
    failed = [str(check) for check in TINY.checks(found) if not check.holds]
    assert not failed, "\n".join(failed)


def test_every_posterior_has_its_rows(found: Found) -> None:
    methods = {row.method for row in found.rows}
    assert methods == {GRID, HMC, *GAUSSIAN, *(f"{kind}_{name}" for kind in ("bnn", "glm") for name in GAUSSIAN)}
    assert all(row.dataset == "toy" and row.splits == 1 and row.paper_mean is None for row in found.rows)


def test_pictures_and_page(found: Found, out: Path) -> None:
    for name in ("toy_classification.png", "1d_toy.png"):
        picture = imread(out / name)
        assert min(picture.shape[:2]) >= 500
        assert picture.std() > 0.05
        assert f"({name})" in (out / "report.md").read_text(encoding="utf-8")
    claims = json.loads((out / "checks.json").read_text(encoding="utf-8"))
    assert len(claims) == len(TINY.checks(found))


def test_a_second_run_measures_nothing(found: Found, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "measure", lambda *_: pytest.fail("a cell was measured again"))
    monkeypatch.setattr(Toy, "report", lambda *_: None)
    assert run(TINY, out, progress=False).rows == found.rows


def test_quick_is_smaller_and_needs_no_data() -> None:
    assert make(True, None).samples < make(False, Path("anything")).samples == 100_000


def test_the_map_is_a_maximum(model: nn.Module) -> None:
    theta = model.get_parameter("layer.weight").detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(log_joint(theta).sum(), theta)
    assert slope.abs().max() < 1e-8
    weights, shares = grid(241)
    assert torch.allclose(weights[shares.argmax()], theta[0], atol=0.05)


def test_outputs_are_the_formula() -> None:
    weights = torch.tensor([[0.3, -0.2], [-1.0, 2.0]], dtype=torch.float64)
    x = torch.tensor([-1.0, 0.5, 3.0], dtype=torch.float64)
    assert torch.allclose(outputs(weights, x), 5 * torch.tanh(weights[:, :1] * x + weights[:, 1:]))
    plain = [
        sum(
            math.log(1 / (1 + math.exp(-s * 5 * math.tanh(w * a + b))))
            for a, s in zip(X.tolist(), (2 * Y - 1).tolist(), strict=True)
        )
        for w, b in weights.tolist()
    ]
    expected = torch.tensor(plain, dtype=torch.float64) - 0.5 * weights.square().sum(-1)
    assert torch.allclose(log_joint(weights), expected)


def test_precisions_are_the_formulas(model: nn.Module) -> None:
    """At b = 0 both matrices are diagonal: h = Σ λ (∂f)² for GGN, less Σ r ∂²f for the Hessian."""
    w = model.get_parameter("layer.weight")[0, 0].item()
    t = np.tanh(w * X.numpy())
    slope, bend = 5 * (1 - t**2), -10 * t * (1 - t**2)
    p = 1 / (1 + np.exp(-5 * t))
    features = np.stack([X.numpy(), np.ones(6)])
    ggn = (p * (1 - p) * (slope * features) ** 2).sum(1)
    hessian = ggn - ((Y.numpy() - p) * bend * features**2).sum(1)
    q, a = float((p * (1 - p) * slope**2).sum()), (features**2).mean(1)
    expected = {
        GGN: ggn + PRECISION,
        HESSIAN: hessian + PRECISION,
        DAMPENED: (np.sqrt(ggn) + math.sqrt(PRECISION)) ** 2,
        KRON_DAMPENED: (q + math.sqrt(PRECISION)) * (a + math.sqrt(PRECISION)),
    }
    for name, precision in expected.items():
        variance = gaussian(name, model).variance()["layer.weight"].flatten()
        assert torch.allclose(variance, torch.as_tensor(1 / precision), rtol=1e-6), name


def test_the_grid_is_fine_enough() -> None:
    rows = [{row["metric"]: row["value"] for row in of_weights(GRID, *grid(points))} for points in (201, 401)]
    assert rows[0]["mass_below_zero"] == pytest.approx(rows[1]["mass_below_zero"], abs=1e-4)
    assert rows[0]["deviation_w"] == pytest.approx(rows[1]["deviation_w"], rel=1e-3)


def test_laws_of_samples_and_of_gaussians_agree() -> None:
    mean, sd = torch.linspace(-1, 2, len(INPUTS), dtype=torch.float64), 0.8
    exact = Law.of_gaussian(Gaussian(mean.unsqueeze(-1), torch.full((len(INPUTS), 1, 1), sd**2)), mean)
    noise = torch.randn(20_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sampled = Law.of_samples(mean + sd * noise)
    assert exact.distance(sampled) < 0.005
    assert np.abs(exact.shares - sampled.shares).max() < 0.01
    assert exact.shares.sum() == pytest.approx(1)


def test_a_law_of_weighted_samples_is_that_of_repeated_ones() -> None:
    f = torch.randn(5, len(INPUTS), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    times = torch.tensor([1, 3, 2, 5, 1])
    weighted = Law.of_samples(f, times / times.sum().double())
    repeated = Law.of_samples(f.repeat_interleave(times, 0))
    assert np.allclose(weighted.mean, repeated.mean)
    assert np.allclose(weighted.f, repeated.f)
    assert np.allclose(weighted.shares, repeated.shares)


def test_distance_of_shifted_laws_is_the_shift() -> None:
    p = torch.rand(400, len(INPUTS), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.1
    one, other = (Law.of_samples(torch.logit(p + shift)) for shift in (0.0, 0.2))
    assert one.distance(other) == pytest.approx(0.2)
    assert one.distance_of_means(other) == pytest.approx(0.2)
    assert one.distance(one) == 0


@pytest.mark.parametrize(("means", "modes"), [((3.5,), [0.95]), ((-4.0, 4.0), [0.05, 0.95])])
def test_modes(means: tuple[float, ...], modes: list[float]) -> None:
    f = torch.cat([torch.full((200, len(INPUTS)), mean, dtype=torch.float64) for mean in means])
    noise = torch.randn(f.shape, dtype=f.dtype, generator=torch.Generator().manual_seed(0))
    assert Law.of_samples(f + 0.8 * noise).modes == pytest.approx(modes)


def test_inputs_hold_the_place_that_is_looked_at() -> None:
    assert (INPUTS - AT).abs().min() < 1e-9
    assert torch.equal(inputs(X)[:, 1], torch.ones(6, dtype=torch.float64))
    assert len(LEVELS) % 2 == 0
