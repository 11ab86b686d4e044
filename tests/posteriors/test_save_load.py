"""What is saved is what is loaded, to the last bit, and only around the model it belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import linlap as ll
from linlap.posteriors import WeightPosterior
from tests.cases import BY_NAME, STRUCTURES
from tests.networks.parts import mlp
from tests.truth import truth_of

ROUND_TRIPS = ["mlp_many_data", "conv2d_groups", "conv_transpose2d", "embedding_padding", "batch_norm_mlp", "lstm",
               "tied_linears", "scale", "frozen_some", "linear"]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def same_numbers(one: WeightPosterior, other: WeightPosterior, x: Any) -> None:
    assert torch.equal(one.latent(x).mean, other.latent(x).mean)
    assert torch.equal(one.latent(x).cov, other.latent(x).cov)
    assert torch.equal(one.latent(x, joint=True).cov, other.latent(x, joint=True).cov)
    assert torch.equal(one.sample_functions(x, 2), other.sample_functions(x, 2))
    assert torch.equal(one.log_evidence(), other.log_evidence())
    assert one.curvature.totals == other.curvature.totals
    assert one.structure == other.structure
    assert list(one.network.theta) == list(other.network.theta)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_round_trip(case: Any, name: str, tmp_path: Path) -> None:
    truth = truth_of(name)
    posterior = truth.fit(case.structure, ll.Prior(0.7, 0.3))
    ll.save(posterior, tmp_path / "posterior")
    loaded = ll.load(tmp_path / "posterior", truth.model())
    same_numbers(posterior, loaded, truth.x)
    # And again, from what was loaded.
    ll.save(loaded, tmp_path / "again")
    same_numbers(posterior, ll.load(tmp_path / "again", truth.model()), truth.x)


PRIORS: dict[str, Callable[[], Any]] = {
    "number": lambda: 0.1,
    "integer": lambda: 2,
    "tensor": lambda: torch.tensor(0.1),
    "with a gradient": lambda: torch.tensor(0.1, requires_grad=True),
    "per layer": lambda: {"": 0.1, "0": 2.5, "4.bias": torch.tensor([1.0, 2.0])},
    "per weight": lambda: torch.linspace(0.1, 1.0, 71),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_every_prior(kind: str, tmp_path: Path) -> None:
    truth = truth_of("mlp_2_hidden")
    posterior = truth.fit(ll.Kron(), ll.Prior(PRIORS[kind](), torch.tensor(0.3)))
    ll.save(posterior, tmp_path / "posterior")
    loaded = ll.load(tmp_path / "posterior", truth.model())
    assert torch.equal(loaded.latent(truth.x).cov, posterior.latent(truth.x).cov)
    shapes, device = posterior.network.shapes, posterior.network.device
    one, other = (p.prior.by_parameter(shapes, device) for p in (posterior, loaded))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    "likelihood",
    [
        ll.Gaussian(),
        ll.Gaussian(0.3),
        ll.Gaussian(torch.tensor([0.1, 0.2])),
        ll.Gaussian([0.1, 0.2]),
        ll.Gaussian((0.1, 0.2)),
        ll.HeteroscedasticGaussian(),
        ll.Bernoulli(),
        ll.Categorical(),
        ll.Poisson(),
    ],
    ids=repr,
)
def test_every_likelihood(likelihood: Any, tmp_path: Path) -> None:
    model, x = mlp(3, 4, 2), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    if not isinstance(likelihood, ll.Categorical):
        y = torch.stack([y, 1 - y], 1)[:, : 1 if isinstance(likelihood, ll.HeteroscedasticGaussian) else 2].float()
    posterior = ll.laplace(model, (x, y), likelihood, progress=False)
    ll.save(posterior, tmp_path / "posterior")
    loaded = ll.load(tmp_path / "posterior", model)
    assert type(loaded.likelihood) is type(likelihood)
    assert torch.equal(ll.GLM(loaded).moments(x).total, ll.GLM(posterior).moments(x).total)


def test_the_weights_come_from_the_file(tmp_path: Path) -> None:
    truth = truth_of("mlp_2_hidden")
    posterior = truth.fit(ll.Kron())
    ll.save(posterior, tmp_path / "posterior")
    untrained = mlp(3, 6, 5, 2).double()
    before = {key: value.clone() for key, value in untrained.state_dict().items()}
    same_numbers(posterior, ll.load(tmp_path / "posterior", untrained), truth.x)
    assert all(torch.equal(value, before[key]) for key, value in untrained.state_dict().items())


def test_a_compiled_model_is_its_model(tmp_path: Path) -> None:
    truth = truth_of("mlp_2_hidden")
    ll.save(truth.fit(ll.Kron()), tmp_path / "posterior")
    loaded = ll.load(tmp_path / "posterior", torch.compile(truth.model()))
    same_numbers(truth.fit(ll.Kron()), loaded, truth.x)


def changed(name: str) -> nn.Module:
    """The model of the posterior, but for one thing."""
    model: Any = BY_NAME["batch_norm_mlp"].build()
    if name == "wider":
        return mlp(3, 5, 2, act=lambda: nn.BatchNorm1d(5)).double()
    if name == "single precision":
        return model.float()
    if name == "another layer's name":
        return nn.ModuleDict({"body": model})
    with torch.no_grad():
        (model[1].running_mean if name == "statistics" else model[0].bias).add_(1)
    return model


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wider", r"'0.weight' is .*\(5, 3\) in the model but .*\(4, 3\) in the file"),
        ("single precision", "'0.weight' is torch.float32.*torch.float64"),
        ("another layer's name", "no parameter '0.weight'.*about"),
        ("statistics", "'1.running_mean' of the model differ"),
        ("a weight it is not about", "'0.bias' of the model differ"),
    ],
)
def test_other_models_are_refused(name: str, words: str, tmp_path: Path) -> None:
    truth = truth_of("batch_norm_mlp")
    ll.save(truth.fit(ll.Diagonal(), parameters=["*.weight"]), tmp_path / "posterior")
    with pytest.raises(ll.InputError, match=words):
        ll.load(tmp_path / "posterior", changed(name))


def test_files_that_are_no_posterior(tmp_path: Path) -> None:
    model = BY_NAME["linear"].build()
    with pytest.raises(ll.InputError, match="no file .*nowhere"):
        ll.load(tmp_path / "nowhere", model)
    (tmp_path / "words").write_text("not a posterior")
    with pytest.raises(ll.InputError, match="words cannot be read"):
        ll.load(tmp_path / "words", model)
    with pytest.raises(ll.InputError, match="cannot be read"):
        ll.load(tmp_path, model)
    save_file({"a": torch.ones(1)}, tmp_path / "weights")
    with pytest.raises(ll.InputError, match="not one that ll.save wrote"):
        ll.load(tmp_path / "weights", model)
    torch.save({"a": 1}, tmp_path / "pickle")
    with pytest.raises(ll.InputError, match="cannot be read"):
        ll.load(tmp_path / "pickle", model)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with safe_open(path, framework="pt") as file:
        header, keys = json.loads(file.metadata()["linlap"]), file.keys()
        tensors = {key: file.get_tensor(key) for key in keys}
    change(header)
    save_file(tensors, path, metadata={"linlap": json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(format=99), "format 99.*reads 1"),
        (lambda h: h["posterior"]["structure"].update({"class": "Popen"}), "class 'Popen'"),
        (lambda h: h["posterior"]["structure"]["fields"].update(speed=9), "cannot be read"),
        (lambda h: h.pop("posterior"), "cannot be read"),
        (lambda h: h["posterior"].pop("curvature"), "cannot be read"),
    ],
)
def test_files_of_another_version_or_tampered_with(change: Any, words: str, tmp_path: Path) -> None:
    truth = truth_of("linear")
    ll.save(truth.fit(ll.Kron()), tmp_path / "posterior")
    rewritten(tmp_path / "posterior", change)
    with pytest.raises(ll.InputError, match=words):
        ll.load(tmp_path / "posterior", truth.model())


def test_a_truncated_file(tmp_path: Path) -> None:
    truth = truth_of("linear")
    ll.save(truth.fit(ll.Kron()), tmp_path / "posterior")
    whole = (tmp_path / "posterior").read_bytes()
    (tmp_path / "posterior").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ll.InputError, match="cannot be read"):
        ll.load(tmp_path / "posterior", truth.model())


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = truth_of("linear")
    path = tmp_path / "posterior"
    ll.save(truth.fit(ll.Kron()), path)
    before = path.read_bytes()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("linlap.io.save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        ll.save(truth.fit(ll.Full()), path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    ll.save(truth.fit(ll.Full()), path)
    assert isinstance(ll.load(path, truth.model()).structure, ll.Full)
    assert [file.name for file in tmp_path.iterdir()] == ["posterior"]


@pytest.mark.parametrize("what", [None, "posterior", nn.Linear(1, 1)])
def test_only_posteriors_are_saved(what: Any, tmp_path: Path) -> None:
    with pytest.raises(ll.InputError, match="ll.laplace"):
        ll.save(what, tmp_path / "posterior")
