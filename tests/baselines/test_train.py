"""Training: to the mode, side by side as one by one, untouched models, and what cannot be trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import linlap as ll
from tests.baselines.cases import Picky, classes, tanh_network, weights
from tests.checks import close, noise, rest_of, same


def test_a_linear_model_ends_at_its_closed_form() -> None:
    """Ridge regression: (Σ x xᵀ / σ² + δ) θ = Σ x y / σ²."""
    x, y = noise(40, 3), noise(40, 1, seed="y")
    model = nn.Linear(3, 1, bias=False).double()
    trained = ll.train_map(model, (x, y), ll.Gaussian(0.5), 2.0, steps=3000, rate=1e-2, progress=False)
    exact = torch.linalg.solve(x.mT @ x / 0.25 + 2.0 * torch.eye(3, dtype=torch.float64), x.mT @ y / 0.25)
    close(weights(trained), exact[:, 0], 1e-6)


def adam_by_hand(
    model: nn.Module, x: Tensor, y: Tensor, precision: dict[str, float], steps: int, rate: float
) -> Tensor:
    named = dict(model.named_parameters())
    optimizer = torch.optim.Adam(named.values(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double(), reduction="sum")
        loss = loss + sum(0.5 * precision[name] * p.square().sum() for name, p in named.items())
        loss.backward()
        optimizer.step()
    return weights(model)


def test_steps_are_those_of_adam_on_the_log_joint() -> None:
    """With a precision for each layer."""
    data, given = classes(0), {"0": 0.5, "2": 3.0}
    trained = ll.train_map(tanh_network(0), data, ll.Bernoulli(), ll.Prior(given), steps=20, rate=0.05, progress=False)
    by_name = {name: given[name[0]] for name, _ in tanh_network(0).named_parameters()}
    close(weights(trained), adam_by_hand(tanh_network(0), *data, by_name, 20, 0.05), 1e-10)


@pytest.mark.parametrize("batch_size", [None, 7])
def test_side_by_side_is_one_by_one(batch_size: int | None) -> None:
    """Seeds, data, and precisions; two lengths of data and two architectures make four stacks."""
    models = [tanh_network(seed, hidden=5 + seed % 2) for seed in range(8)]
    data = [classes(seed, 30 + 3 * (seed // 4)) for seed in range(8)]
    deltas = [10.0 ** (seed / 2 - 2) for seed in range(8)]
    options: dict[str, Any] = {"steps": 60, "rate": 0.02, "batch_size": batch_size, "progress": False}
    together = ll.train_map(models, data, ll.Bernoulli(), deltas, **options)
    for model, own, delta, trained in zip(models, data, deltas, together, strict=True):
        alone = ll.train_map(model, own, ll.Bernoulli(), delta, **options)
        close(weights(trained), weights(alone), 1e-9)


def conv(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ).double()


def normed(seed: int) -> nn.Module:
    """With buffers, and a weight used twice."""
    torch.manual_seed(seed)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.BatchNorm1d(6), nn.Dropout(), nn.Tanh(), second, nn.LayerNorm(6)).double()


@pytest.mark.parametrize("build", [conv, normed])
def test_other_layers_side_by_side(build: Callable[[int], nn.Module]) -> None:
    x, y = noise(12, 6), noise(12).argsort() % 2
    models = [build(seed) for seed in range(3)]
    together = ll.train_map(
        models, [(x, y)] * 3, ll.Categorical(), [0.1, 1.0, 1.0], steps=20, rate=0.01, progress=False
    )
    for model, delta, trained in zip(models, [0.1, 1.0, 1.0], together, strict=True):
        alone = ll.train_map(model, (x, y), ll.Categorical(), delta, steps=20, rate=0.01, progress=False)
        close(weights(trained), weights(alone), 1e-9)
        assert (weights(trained) - weights(model)).abs().max() > 1e-3


class Signed(nn.Module):
    """Looks the same as others of its class but for a number that no weight or buffer holds."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.layer, self.sign = nn.Linear(2, 1).double(), sign

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.layer(x) * self.sign
        return f


@pytest.mark.parametrize("models", [[Picky(), Picky()], [Signed(1.0), Signed(-1.0)]], ids=["picky", "signed"])
def test_networks_that_cannot_go_side_by_side_go_one_by_one(models: list[nn.Module]) -> None:
    data = [classes(0), classes(1)]
    with pytest.warns(ll.LinlapWarning, match="2 networks go one by one"):
        trained = ll.train_map(models, data, ll.Bernoulli(), steps=5, progress=False)
    for model, own, found in zip(models, data, trained, strict=True):
        alone = ll.train_map(model, own, ll.Bernoulli(), steps=5, progress=False)
        assert torch.equal(weights(found), weights(alone))


def test_the_seed_decides_the_batches_and_nothing_else_does() -> None:
    def run(seed: int) -> Tensor:
        options: dict[str, Any] = {"steps": 10, "batch_size": 4, "seed": seed, "progress": False}
        return weights(ll.train_map(tanh_network(0), classes(0), ll.Bernoulli(), **options))

    first = run(1)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert torch.equal(run(1), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(run(2), first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("batch_size", [None, 7])
def test_on_a_gpu_as_on_a_cpu(batch_size: int | None) -> None:
    """Also where steps are replayed as a graph, whose rate must still change."""
    options: dict[str, Any] = {"steps": 40, "rate": lambda step: 0.05 / (1 + step), "batch_size": batch_size}
    models, data = [tanh_network(seed) for seed in range(3)], [classes(seed) for seed in range(3)]
    here = ll.train_map(models, data, ll.Bernoulli(), **options, progress=False)
    there = ll.train_map(
        [tanh_network(seed).cuda() for seed in range(3)],
        [(x.cuda(), y.cuda()) for x, y in data],
        ll.Bernoulli(),
        **options,
        progress=False,
    )
    for one, other in zip(here, there, strict=True):
        close(weights(other).cpu(), weights(one), 1e-6)


def test_minibatches_climb_the_objective_of_all_data() -> None:
    """The factor N / M: with batches of 10, small steps end where those on all data do."""
    data = classes(0, 40)
    rate = [0.02, 0.005, 0.001, 0.0002]
    options: dict[str, Any] = {"steps": 4000, "rate": lambda step: rate[step // 1000], "progress": False}
    parts = ll.train_map(nn.Linear(2, 1).double(), data, ll.Bernoulli(), 5.0, batch_size=10, **options)
    whole = ll.train_map(nn.Linear(2, 1).double(), data, ll.Bernoulli(), 5.0, **options)
    close(weights(parts), weights(whole), 1e-2)


@pytest.mark.parametrize("form", ["dataset", "loader", "batches"])
def test_all_forms_of_data(form: str) -> None:
    x, y = classes(0)
    dataset = TensorDataset(x, y)
    forms = {"dataset": dataset, "loader": DataLoader(dataset, batch_size=30), "batches": [(x, y)]}
    trained = ll.train_map(tanh_network(0), forms[form], ll.Bernoulli(), steps=20, progress=False)
    expected = ll.train_map(tanh_network(0), (x, y), ll.Bernoulli(), steps=20, progress=False)
    close(weights(trained), weights(expected), 1e-9)


def test_the_model_stays_as_it_is_and_frozen_weights_stay_frozen() -> None:
    model = normed(0).train()
    model[5].weight.requires_grad_(False)
    before = rest_of(model)
    trained = ll.train_map(model, (noise(12, 6), noise(12).argsort() % 2), ll.Categorical(), steps=5, progress=False)
    assert same(rest_of(model), before)
    assert torch.equal(trained[5].weight, model[5].weight)
    assert {n: p.requires_grad for n, p in trained.named_parameters()} == {
        n: p.requires_grad for n, p in model.named_parameters()
    }
    assert not trained.training
    assert trained[0].weight is trained[4].weight
    ll.laplace(trained, (noise(12, 6), noise(12).argsort() % 2), ll.Categorical(), progress=False)


def test_progress_may_be_a_function() -> None:
    calls: list[int] = []
    models, data = [tanh_network(0), tanh_network(1, hidden=4)], [classes(0), classes(1)]
    ll.train_map(models, data, ll.Bernoulli(), steps=7, progress=lambda: calls.append(1))
    assert len(calls) == 14


def test_numbers_that_are_not_finite_end_it() -> None:
    regression = noise(9, 2), noise(9, 1)
    with pytest.raises(ll.NotFiniteError, match=r"network 1 of the list .* by step 50; pass a smaller rate"):
        ll.train_map(
            [nn.Linear(2, 1).double(), nn.Linear(2, 1).double()],
            [regression, (regression[0] * 1e300, regression[1])],
            ll.Gaussian(),
            steps=100,
            progress=False,
        )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "steps": ({"steps": 0}, "steps=0"),
    "true steps": ({"steps": True}, "steps=True"),
    "rate": ({"rate": -1e-3}, "rate=-0.001"),
    "rate of a step": ({"rate": lambda step: 1.0 - step}, "rate(1) is 0.0"),
    "batch size": ({"batch_size": 0}, "batch_size=0"),
    "seed": ({"seed": -1}, "seed=-1"),
    "model": ({"model": "net"}, "model is a str"),
    "no models": ({"model": [], "data": []}, "0 models"),
    "too few data": ({"model": [tanh_network(0)] * 2, "data": [classes(0)]}, "2 models and 1 data"),
    "no list of data": ({"model": [tanh_network(0)] * 3}, "3 models and 2 data"),
    "priors": ({"model": [tanh_network(0)], "data": [classes(0)], "prior": [1.0, 2.0]}, "1 models and 2 priors"),
    "prior": ({"prior": -1.0}, "prior precision is -1.0"),
    "likelihood": ({"likelihood": "bernoulli"}, "likelihood is 'bernoulli'"),
    "labels": ({"data": (classes(0)[0], classes(0)[1] + 1)}, "neither 0 nor 1"),
    "inputs": ({"data": (classes(0)[0].float(), classes(0)[1])}, "inputs are torch.float32"),
    "numbers": ({"data": (classes(0)[0] * torch.nan, classes(0)[1])}, "NaN or infinite"),
    "no data": ({"data": []}, "empty"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=list(BAD))
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": tanh_network(0), "data": classes(0), "likelihood": ll.Bernoulli(), "steps": 3}
    with pytest.raises(ll.InputError) as error:
        ll.train_map(**(given | change), progress=False)
    assert message in str(error.value)
