"""What a Gaussian process cannot take is refused by name; what it keeps, and what it must guess, is said."""

from __future__ import annotations

import resource
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linlap as ll
from linlap.posteriors import FunctionPosterior, points
from tests.checks import close, noise
from tests.networks.parts import mlp

N, C = 20, 3
CHOICES = [ll.Everything(), ll.Subset(5), ll.TopM(5), ll.Sparse(5), ll.Sparse(inputs=noise(4, 3, seed="own"))]
each_choice = pytest.mark.parametrize("choice", CHOICES, ids=["everything", "subset", "top", "sparse", "own inputs"])


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return mlp(3, 8, C).double(), noise(N, 3), torch.arange(N) % C


def fit(inducing: Any = None, outputs: Any = "independent", data: Any = None) -> FunctionPosterior:
    model, x, y = problem()
    given = (x, y) if data is None else data
    return ll.gaussian_process(model, given, ll.Categorical(), inducing, outputs, 1.0, progress=False)


# Inducing inputs


@pytest.mark.parametrize("choice", [ll.Subset, ll.TopM, ll.Sparse])
def test_more_inducing_inputs_than_data(choice: Any) -> None:
    with pytest.raises(ll.InputError, match=rf"{choice.__name__}\(.* asks for 21 inputs, but there are 20 data"):
        fit(choice(N + 1))


@pytest.mark.parametrize("choice", [ll.Subset, ll.TopM, ll.Sparse])
@pytest.mark.parametrize("size", [0, -1, 2.0, "5", torch.tensor(3)], ids=repr)
def test_no_number_of_inputs(choice: Any, size: Any) -> None:
    with pytest.raises(ll.InputError, match=rf"{choice.__name__}\(.*\); pass a positive number of inputs"):
        choice(size)


@pytest.mark.parametrize("choice", [ll.Subset, ll.Sparse])
@pytest.mark.parametrize("seed", [-1, 1.5, "a", True], ids=repr)
def test_no_seed(choice: Any, seed: Any) -> None:
    with pytest.raises(ll.InputError, match="seed=.*; pass a whole number ≥ 0"):
        choice(5, seed=seed)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (noise(4, 7), r"inducing inputs do not fit: the model cannot take inputs of shape \[n, 7\]"),
        (noise(4), r"inducing inputs do not fit: the model cannot take inputs of shape \[n\]"),
        (noise(4, 2, 3), r"inducing inputs do not fit: the model's output has shape \(5, 2, 3\)"),
        (noise(4, 3).float(), "inducing inputs do not fit: inputs are torch.float32 but the weights are torch.float64"),
        ((noise(4, 3), noise(4, 3)), r"inducing inputs do not fit: the model cannot take .* \[n, 3\] and \[n, 3\]"),
        (torch.tensor(1.0), "do not share a first axis"),
        (noise(4, 3).numpy(), "inputs are of type ndarray; pass a torch.Tensor"),
        (noise(0, 3), "there are no inputs"),
    ],
    ids=["columns", "no columns", "positions", "float32", "a tuple", "a number", "numpy", "none"],
)
def test_inducing_inputs_that_do_not_fit(given: Any, words: str) -> None:
    with pytest.raises(ll.InputError, match=words):
        fit(ll.Sparse(inputs=given))


@pytest.mark.parametrize("outputs", ["independent", "coupled"])
def test_duplicates_get_jitter_and_its_size_is_said(outputs: str) -> None:
    _, x, y = problem()
    with pytest.warns(ll.LinlapWarning, match=r"inducing inputs was singular; added \d.* to its diagonal"):
        twice = fit(ll.Sparse(10), outputs, (x[:5].repeat(2, 1), y[:5].repeat(2)))
    once = fit(ll.Sparse(inputs=x[:5]), outputs, (x[:5].repeat(2, 1), y[:5].repeat(2)))
    close(twice.latent(x).cov, once.latent(x).cov, 1e-6)


@pytest.mark.parametrize("outputs", ["independent", "coupled"])
@pytest.mark.parametrize("large", [False, True])
def test_duplicates_in_float32_are_no_information(outputs: Any, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernel, rounded to seven digits, may pass for positive definite: its smallest pivots are rounding."""
    if large:
        monkeypatch.setattr("linlap.posteriors.conditioning.LARGE", 8)
        monkeypatch.setattr("linlap.linalg.large._PANEL", 4)
    for seed in range(5):
        Z, x, y = noise(5, 3, seed=seed).float(), noise(30, 3, seed=-seed - 1).float(), torch.arange(30) % 3
        torch.manual_seed(seed)
        model = mlp(3, 16, 3)
        for first in (model[0].weight, model[2].weight):
            first.data.mul_(3.0)
        once, twice = (
            ll.gaussian_process(model, (x, y), ll.Categorical(), ll.Sparse(inputs=inputs), outputs, progress=False)
            for inputs in (Z, torch.cat([Z, Z, Z]))
        )
        close(twice.latent(x).cov, once.latent(x).cov, 1e-4)


# Memory


def test_covariances_that_memory_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    process, (_, x, _) = fit(), problem()
    process.latent(x)
    monkeypatch.setattr("linlap.network.memory.available", lambda device: 1000)
    with pytest.raises(ll.MemoryBudgetError, match="covariances of .* inputs needs about .*diagonal=True"):
        process.latent(x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("projected", [False, True])
def test_kernels_take_about_what_is_said(projected: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    monkeypatch.setattr("linlap.gp.require", lambda size, *words: said.append(size))
    x, y = noise(2000, 5).to(dtype), noise(2000, 1).to(dtype)
    model, held = mlp(5, 8, 1).to(dtype), Resident()

    def make(rows: int) -> FunctionPosterior:
        choice = ll.Sparse(inputs=x[:rows]) if projected else ll.Everything()
        return ll.gaussian_process(model, (x[:rows], y[:rows]), ll.Gaussian(), choice, progress=False)

    make(50)  # what is loaded once
    with held:
        make(2000)
    assert held.peak <= 1.2 * said[-1]


class Resident(threading.Thread):
    """Watches how much more memory the process takes than at the start."""

    def __enter__(self) -> None:
        self.before, self.peak, self.over = self.now(), 0, False
        self.start()

    def __exit__(self, *error: Any) -> None:
        self.over = True
        self.join()

    def run(self) -> None:
        while not self.over:
            self.peak = max(self.peak, self.now() - self.before)
            time.sleep(0.001)

    @staticmethod
    def now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# Data


@each_choice
@pytest.mark.parametrize("kind", ["tensors", "loader", "list"])
def test_no_data(choice: Any, kind: str) -> None:
    empty = (noise(0, 3), torch.arange(0))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*empty))
    given: Any = {"tensors": empty, "loader": loader, "list": []}[kind]
    with pytest.raises(ll.InputError, match="data are empty"):
        fit(choice, data=given)


@pytest.mark.parametrize("choice", [ll.Everything(), ll.Sparse(5)], ids=["everything", "sparse"])
def test_updates_with_no_data_or_others(choice: Any) -> None:
    process = fit(choice)
    for given, words in [
        ((noise(0, 3), torch.arange(0)), "data are empty"),
        ([], "data are empty"),
        ((noise(4, 7), torch.arange(4) % C), r"cannot take inputs of shape \[n, 7\]"),
        ((noise(4, 3), torch.arange(4) + C), "classes are 0 to 2"),
    ]:
        with pytest.raises(ll.InputError, match=words):
            process.update(given)


# What is kept, and what is lost


@each_choice
@pytest.mark.parametrize("outputs", ["independent", "coupled"])
def test_what_is_kept_is_said(choice: Any, outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = fit(choice, outputs)
    rows, groups = kept.points.rows, kept.points.groups
    shape = tuple(kept.conditioning.factor.shape)  # type of either conditioning
    assert shape == (groups, rows, rows)
    assert f"factor {groups} × {rows} × {rows} kept" in repr(kept)
    assert f"features of {len(kept.points)} inputs kept" in repr(kept)
    assert kept.points.keeps
    monkeypatch.setattr(points, "available", lambda device: kept.points.bytes * 4 - 1)
    remade = fit(choice, outputs)
    assert not remade.points.keeps
    assert f"features of {len(kept.points)} inputs too large to keep, made again for each prediction" in repr(remade)
    assert "_kept" not in vars(remade.points)
    assert "\n" not in repr(remade)


def test_features_take_what_is_said() -> None:
    process = fit(ll.Subset(5))
    process.latent(problem()[1])
    held = {t.data_ptr(): t.nbytes for tile in process.points.tiles() for t in tensors_in(tile.blocks)}
    assert sum(held.values()) == process.points.bytes


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [t for part in inside.values() for t in tensors_in(part)]


def test_variances_that_rounding_takes_are_said() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 200)[:, None]
    data, likelihood = (x, torch.sin(3 * x)), ll.Gaussian(0.01)
    model = mlp(1, 30, 1).float()
    process = ll.gaussian_process(model, data, likelihood, prior=1.0, progress=False)
    with pytest.warns(ll.LinlapWarning, match="torch.float32 rounds them away; pass a model and data in float64"):
        process.latent(x)
    precise = (x.double(), data[1].double())
    process = ll.gaussian_process(model.double(), precise, likelihood, prior=1.0, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (process.latent(precise[0]).variance > 0).all()
