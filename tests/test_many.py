"""Many problems in one call: the same posteriors as one by one, and errors that say which is at fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import linlap as ll
from linlap.network import Network
from linlap.network.stack import batches_of, jacobians
from tests.checks import close, noise
from tests.networks.parts import mlp

Problem = tuple[nn.Module, tuple[Tensor, Tensor]]


def problem(seed: int, n: int = 6, inputs: int = 3) -> Problem:
    x = noise(n, inputs, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(inputs, 4, 3).double(), (x, torch.arange(n) % 3)


def assert_same(one: Any, other: Any, x: Tensor) -> None:
    """The laws of outputs, weights and data that two posteriors stand for."""
    assert one.structure == other.structure
    assert one.curvature.totals.count == other.curvature.totals.count
    close(one.mean, other.mean, 1e-10)
    close(one.latent(x).mean, other.latent(x).mean, 1e-10)
    close(one.latent(x).cov, other.latent(x).cov, 1e-10)
    close(one.precision.dense(), other.precision.dense(), 1e-10)
    close(one.log_evidence(), other.log_evidence(), 1e-10)


# Four of 6 data, whose 12 rows are few beside 31 weights; of 40 data; of another architecture; a Dataset.
MIXED = [*(problem(seed) for seed in range(4)), problem(4, 40), problem(5, 40), problem(6, inputs=5), problem(7)]
DATA = [*(data for _, data in MIXED[:-1]), TensorDataset(*MIXED[-1][1])]


@pytest.mark.parametrize("structure", [ll.Full(), ll.Diagonal(), ll.Kron()])
@pytest.mark.parametrize("priors", ["one", "each", "none"])
def test_fits(structure: Any, priors: str) -> None:
    models = [model for model, _ in MIXED]
    given = {"one": 0.7, "each": [0.5 + k for k in range(len(models))], "none": None}[priors]
    together = ll.laplace(models, DATA, ll.Categorical(), structure, given, progress=False)
    for k, (found, (model, data)) in enumerate(zip(together, MIXED, strict=True)):
        prior = given[k] if isinstance(given, list) else given
        alone = ll.laplace(model, data, ll.Categorical(), structure, prior, progress=False)
        assert_same(found, alone, data[0])


def test_only_some_weights() -> None:
    models, data = [model for model, _ in MIXED[:3]], DATA[:3]
    together = ll.laplace(models, data, ll.Categorical(), ll.Full(), 1.0, parameters="last", progress=False)
    for found, model, own in zip(together, models, data, strict=True):
        alone = ll.laplace(model, own, ll.Categorical(), ll.Full(), 1.0, parameters="last", progress=False)
        assert_same(found, alone, own[0])


def test_likelihoods_of_their_own() -> None:
    x, y = noise(5, 3), noise(5, 3, seed=1)
    models, laws = [problem(seed)[0] for seed in range(3)], [ll.Gaussian(0.5), ll.Gaussian(0.5), ll.Gaussian(2.0)]
    together = ll.laplace(models, [(x, y)] * 3, laws, ll.Full(), 1.0, progress=False)
    for found, model, law in zip(together, models, laws, strict=True):
        assert_same(found, ll.laplace(model, (x, y), law, ll.Full(), 1.0, progress=False), x)


@pytest.mark.parametrize(
    "choice",
    [{}, {"over": "layer"}, {"noise": "scalar"}, {"noise": "output", "data": (noise(5, 3), noise(5, 3, seed=1))}],
)
def test_the_evidence_of_kept_rows(choice: dict[str, Any]) -> None:
    x, y = noise(5, 3), noise(5, 3, seed=1)
    model = problem(0)[0]
    (kept,) = ll.laplace([model], [(x, y)], ll.Gaussian(0.5), ll.Full(), 1.0, progress=False)
    matrix = ll.laplace(model, (x, y), ll.Gaussian(0.5), ll.Full(), 1.0, progress=False)
    one, other = (ll.select_prior(posterior, ll.Evidence(**choice)) for posterior in (kept, matrix))
    close(one.log_evidence(), other.log_evidence())
    close(one.latent(x).cov, other.latent(x).cov, 1e-5)


def test_kept_rows_are_saved(tmp_path: Any) -> None:
    model, data = MIXED[0]
    (posterior,) = ll.laplace([model], [data], ll.Categorical(), ll.Full(), 1.0, progress=False)
    ll.save(posterior, tmp_path / "posterior")
    assert_same(ll.load(tmp_path / "posterior", model), posterior, data[0])


@pytest.mark.parametrize(
    "method",
    [
        ll.GlmMap(),
        ll.GlmMap("adam", steps=20),
        ll.NaturalGradient(steps=9),
        ll.NaturalGradient("diagonal", steps=9),
        ll.NaturalGradient("kron", steps=3, batch_size=4),
    ],
)
@pytest.mark.parametrize("structure", [ll.Full(), ll.Diagonal(), ll.Kron()])
def test_refinements(method: Any, structure: Any) -> None:
    posteriors = [
        ll.laplace(model, data, ll.Categorical(), structure, 0.5 + k, progress=False)
        for k, (model, data) in enumerate(MIXED)
    ]
    together = ll.refine(posteriors, DATA, method, progress=False)
    for found, posterior, data, (_, (x, _)) in zip(together, posteriors, DATA, MIXED, strict=True):
        alone = ll.refine(posterior, data, method, progress=False)
        assert_same(found, alone, x)
        assert found.refinement is not None
        assert alone.refinement is not None
        close(found.refinement.objective[-1], alone.refinement.objective[-1], 1e-10)


def test_patience_is_each_problems_own() -> None:
    """What stops early by itself stops early beside others: the same best state, the same record."""
    posteriors = [
        ll.laplace(model, data, ll.Categorical(), ll.Full(), prior, progress=False)
        for (model, data), prior in zip(MIXED[:4], (0.01, 0.3, 3.0, 100.0), strict=True)
    ]
    method = ll.NaturalGradient(steps=300, rate=0.1, patience=3)
    together = ll.refine(posteriors, DATA[:4], method, progress=False)
    alone = [
        ll.refine(posterior, own, method, progress=False) for posterior, own in zip(posteriors, DATA, strict=False)
    ]
    for one, other, (_, (x, _)) in zip(together, alone, MIXED, strict=False):
        assert_same(one, other, x)
        assert repr(one.refinement) == repr(other.refinement)
        close(one.refinement.objective, other.refinement.objective, 1e-10)
    assert len({one.refinement.steps for one in together}) > 1


def test_some_reach_the_mode_and_some_do_not() -> None:
    models, data = [model for model, _ in MIXED[:2]], DATA[:2]
    posteriors = ll.laplace(models, data, ll.Categorical(), ll.Full(), [1e4, 1e-4], progress=False)
    with pytest.warns(ll.LinlapWarning, match="not reached"):
        together = ll.refine(posteriors, data, ll.GlmMap(steps=3), progress=False)
    assert [one.refinement.converged for one in together] == [True, False]


# Jacobians of networks in one batch, as on a GPU


def convolutional(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)).double()


@pytest.mark.parametrize("kind", ["mlp", "convolutional", "last layer"])
def test_jacobians_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = "last" if kind == "last layer" else None
    make = convolutional if kind == "convolutional" else lambda seed: problem(seed)[0]
    networks = [Network(make(seed), parameters) for seed in range(3)]
    shape = (7, 1, 4, 4) if kind == "convolutional" else (7, 3)
    xs = [noise(*shape, seed=seed) for seed in range(3)]
    whole = jacobians(networks, xs)
    monkeypatch.setattr("linlap.network.stack.default_budget", lambda device: 3 * 3 * 3 * networks[0].size * 8)
    parts = jacobians(networks, xs)
    assert whole is not None
    assert parts is not None
    for k, (network, x) in enumerate(zip(networks, xs, strict=True)):
        alone = Network(network.model, parameters if parameters is None else network.names).linearize(x)
        for f, j in (whole, parts):
            close(f[k], alone.mean)
            close(j[k], alone.jacobian.dense())


class Scaled(nn.Module):
    """A number that is no buffer: it does not show in what networks that are alike have in common."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2, dtype=torch.float64), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(2 * x)


@pytest.mark.parametrize(
    "models", [[Scaled(1.0), Scaled(2.0), Scaled(1.0)], [Branching(3, 2, dtype=torch.float64)] * 2]
)
def test_networks_that_cannot_be_batched(models: list[nn.Module]) -> None:
    assert jacobians([Network(model) for model in models], [noise(1, 3)] * len(models)) is None


def test_places_of_equal_keys() -> None:
    keys = ["a", None, "b", "a", "a", None, "b", "c"]
    assert list(batches_of(keys, lambda place: 2)) == [[0, 3], [4], [1], [2, 6], [5], [7]]
    assert list(batches_of(["a", "a"], lambda place: 0)) == [[0], [1]]


# Bad input


def test_the_one_at_fault_is_named() -> None:
    models, data = [model for model, _ in MIXED[:4]], list(DATA[:4])
    with pytest.raises(ll.InputError, match=r"models\[2\]: y\[1\] is 9"):
        ll.laplace(
            models, [*data[:2], (data[2][0], torch.tensor([0, 9, 1, 2, 0, 1])), data[3]], ll.Categorical(), ll.Full()
        )
    with pytest.raises(ll.NotFiniteError, match=r"models\[1\]: the inputs"):
        ll.laplace(models, [data[0], (data[1][0] * torch.inf, data[1][1]), *data[2:]], ll.Categorical(), ll.Diagonal())
    with pytest.raises(ll.NotFiniteError, match=r"models\[0\]: the inputs"):
        ll.laplace(models, [(data[0][0] * torch.inf, data[0][1]), *data[1:]], ll.Categorical(), ll.Full())
    with pytest.raises(ll.InputError, match=r"models\[3\]: .*precision"):
        ll.laplace(models, data, ll.Categorical(), ll.Full(), [1.0, 1.0, 1.0, -1.0])
    posteriors = ll.laplace(models, data, ll.Categorical(), ll.Full(), 1.0, progress=False)
    for method in (ll.GlmMap(), ll.NaturalGradient(steps=2), ll.NaturalGradient("kron", steps=2)):
        with pytest.raises(ll.InputError, match=r"posteriors\[2\]: .*fitted on 6 data and these are 5"):
            ll.refine(posteriors, [*data[:2], (data[2][0][:5], data[2][1][:5]), data[3]], method, progress=False)
        with pytest.raises(ll.InputError, match=r"posteriors\[0\]: data is a Tensor"):
            ll.refine(posteriors, [data[0][0], *data[1:]], method, progress=False)
        with pytest.raises(ll.InputError, match=r"posteriors\[1\]: .*refines a posterior over weights"):
            ll.refine([posteriors[0], "?"], data[:2], method)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": []}, "0 models and .*; pass at least one"),
        ({"data": DATA[:1]}, "2 models and .* the data of each"),
        ({"data": DATA[0][0]}, "2 models and .* the data of each"),
        ({"prior": [1.0]}, "1 values of prior for 2 models"),
        ({"likelihood": [ll.Categorical()] * 3}, "3 values of likelihood for 2 models"),
    ],
)
def test_lists_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    given = {"model": [MIXED[0][0], MIXED[1][0]], "data": DATA[:2], "likelihood": ll.Categorical()} | change
    with pytest.raises(ll.InputError, match=said):
        ll.laplace(**given)


def test_a_checkpoint_is_of_one_run(tmp_path: Any) -> None:
    posteriors = ll.laplace([MIXED[0][0], MIXED[1][0]], DATA[:2], ll.Categorical(), ll.Kron(), 1.0, progress=False)
    with pytest.raises(ll.InputError, match="refine them one by one"):
        ll.refine(posteriors, DATA[:2], ll.NaturalGradient("kron", checkpoint=tmp_path / "run"))
