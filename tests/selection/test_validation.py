"""Scores of a whole grid are those of one posterior, one predictive and one metric a value, from one pass over data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import linlap as ll
from linlap import metrics
from linlap.posteriors import WeightPosterior
from linlap.validation import Minimum
from tests.cases import STRUCTURES
from tests.checks import close, varied
from tests.networks.truth import Truth
from tests.structures import StructureCase
from tests.truth import truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
GRID = [0.1, 3.0, 100.0]
SCORES = {"nll": metrics.nll, "ece": metrics.ece, "brier": metrics.brier, "rmse": metrics.rmse, "crps": metrics.crps}


def search(posterior: Any, data: Any, *args: Any, **options: Any) -> Minimum:
    return ll.Validation(data, *args, **options, progress=False).minimise(posterior)


def one_by_one(posterior: Any, data: tuple[Any, Tensor], priors: Any, score: Any = metrics.nll, **glm: Any) -> Tensor:
    """The slow way: a posterior, a prediction of all data and a metric for each prior."""
    priors = [prior if isinstance(prior, ll.Prior) else ll.Prior(prior) for prior in priors]
    x, y = data
    found = [score(ll.GLM(posterior.with_prior(prior), **glm)(x), y) for prior in priors]
    return torch.tensor(found, dtype=torch.float64)


def held_out(truth: Truth) -> tuple[Any, Tensor]:
    return truth.x, truth.y


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
def test_structures(case: StructureCase) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(case.structure, 0.7), held_out(truth)
    close(search(posterior, data, GRID, batch_size=5).scores, one_by_one(posterior, data, GRID))
    layered = ll.Prior({"0": 0.3, "": 2.0})
    priors = [layered, layered.times(10.0), ll.Prior(varied(len(truth.theta)), 2.0)]
    close(search(posterior, data, priors).scores, one_by_one(posterior, data, priors))


PAIRS = [
    *[("gaussian", None, name) for name in ("nll", "rmse", "crps")],
    *[("gaussian_per_output", None, name) for name in ("nll", "crps")],
    *[("categorical", integrator, "nll") for integrator in (None, ll.Probit(), ll.LaplaceBridge(), ll.MonteCarlo(7))],
    *[("categorical", None, name) for name in ("ece", "brier")],
    *[("bernoulli", integrator, "nll") for integrator in (None, ll.Probit(), ll.MonteCarlo(20))],
    *[("bernoulli", None, name) for name in ("ece", "brier")],
    *[("poisson", None, name) for name in ("nll", "rmse", "crps")],
    ("poisson", ll.MonteCarlo(20), "nll"),
    ("gaussian", ll.MonteCarlo(20), "nll"),
]


@pytest.mark.parametrize(("law", "integrator", "name"), PAIRS, ids=lambda value: str(value))
def test_likelihoods_integrators_and_objectives(law: str, integrator: Any, name: Any) -> None:
    truth = truth_of("mlp_many_data", law)
    posterior, data = truth.fit(ll.Kron(), 0.7), held_out(truth)
    found = search(posterior, data, GRID, objective=name, integrator=integrator, batch_size=4)
    close(found.scores, one_by_one(posterior, data, GRID, SCORES[name], integrator=integrator))
    assert found.objective == name


@pytest.mark.parametrize("name", ["mlp_2_hidden", "mlp_1_hidden", "output_vector"])
def test_few_outputs(name: str) -> None:
    """Noise that is predicted too; one label, one count, one number."""
    for law in ("heteroscedastic",) if name == "mlp_2_hidden" else ("bernoulli", "poisson", "gaussian"):
        truth = truth_of(name, law)
        posterior, data = truth.fit(ll.Full(), 0.7), held_out(truth)
        close(search(posterior, data, GRID, batch_size=3).scores, one_by_one(posterior, data, GRID))
    integrator = ll.GaussHermite()
    if name != "mlp_2_hidden":
        found = search(posterior, data, GRID, integrator=integrator)
        close(found.scores, one_by_one(posterior, data, GRID, integrator=integrator))


@pytest.mark.parametrize("name", ["conv2d", "embedding", "lstm", "dict_whole"])
def test_networks(name: str) -> None:
    truth = truth_of(name)
    posterior, data = truth.fit(ll.Kron(), 0.7), held_out(truth)
    close(search(posterior, data, GRID, batch_size=2).scores, one_by_one(posterior, data, GRID))


CHOICES = {"everything": ll.Everything(), "subset": ll.Subset(5), "top": ll.TopM(5), "sparse": ll.Sparse(5)}


def process(truth: Truth, choice: str, outputs: Any, prior: Any = 0.7) -> Any:
    data = held_out(truth)
    return ll.gaussian_process(truth.model(), data, truth.likelihood, CHOICES[choice], outputs, prior, progress=False)


@pytest.mark.parametrize("outputs", ["coupled", "independent"])
@pytest.mark.parametrize("choice", CHOICES)
def test_processes(choice: str, outputs: str) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = process(truth, choice, outputs), held_out(truth)
    found = search(posterior, data, GRID, temperatures=[0.5, 2.0], batch_size=5)
    priors = [ll.Prior(d, t) for d in GRID for t in (0.5, 2.0)]
    close(found.scores.flatten(), one_by_one(posterior, data, priors))
    assert found.posterior.scale == posterior.scale  # a subset's factor N / M stays in it


def test_a_process_with_a_prior_by_layer_is_tried_at_its_multiples() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    own = ll.Prior({"0": 0.3, "": 2.0}, 1.5)
    posterior, data = process(truth, "sparse", "independent", own), held_out(truth)
    found = search(posterior, data, points=4)
    assert found.axes[0].name == "multiple of the posterior's prior"
    close(torch.tensor(found.axes[0].values, dtype=torch.float64), torch.logspace(-3, 3, 4, dtype=torch.float64))
    close(found.scores, one_by_one(posterior, data, [own.times(factor) for factor in (1e-3, 0.1, 10.0, 1e3)]))


def test_refined_posteriors() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    fit = truth.fit(ll.Kron(), 0.7)
    shift = 0.3 * varied(len(truth.theta))
    posterior = WeightPosterior(fit.network, fit.likelihood, fit.structure, fit.curvature, fit.prior, shift)
    data = held_out(truth)
    found = search(posterior, data, GRID)
    close(found.scores, one_by_one(posterior, data, GRID))
    assert (found.scores - search(fit, data, GRID).scores).abs().min() > 1e-6
    assert found.posterior.shift is shift


# The network under sampled weights


@pytest.mark.parametrize("structure", [ll.Full(), ll.Kron(), ll.Diagonal()], ids=str)
@pytest.mark.parametrize("law", ["categorical", "gaussian"])
def test_sampled_networks(structure: Any, law: str) -> None:
    truth = truth_of("mlp_many_data", law)
    posterior, (x, y) = truth.fit(structure, 0.7), held_out(truth)
    found = search(posterior, (x, y), GRID, predictive=partial(ll.BNN, samples=6), batch_size=4)
    slow = [metrics.nll(ll.BNN(posterior.with_prior(d), samples=6)(x), y) for d in GRID]
    close(found.scores, torch.tensor(slow, dtype=torch.float64))


def test_sampled_networks_with_a_generator() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, (x, y) = truth.fit(ll.Kron(), 0.7), held_out(truth)

    def predictive(member: Any) -> ll.BNN:
        return ll.BNN(member, 6, torch.Generator().manual_seed(3))

    found = search(posterior, (x, y), GRID, predictive=predictive)
    slow = [metrics.nll(predictive(posterior.with_prior(d))(x), y) for d in GRID]
    close(found.scores, torch.tensor(slow, dtype=torch.float64))


def runs(posterior: Any, call: Callable[[], Any]) -> int:
    """Inputs that went through the network."""
    seen = []
    handle = posterior.network.model.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    call()
    handle.remove()
    return sum(seen)


def test_one_pass() -> None:
    """However many values; under sampled weights one a sample and value, and one to check the data."""
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(ll.Kron(), 0.7), held_out(truth)
    search(posterior, data, GRID)  # the sizes of this kind of input are known from now on
    for grid in ([1.0], np.geomspace(0.1, 10, 40)):
        options: Any = {"temperatures": [0.5, 1.0], "batch_size": 5}
        assert runs(posterior, lambda: search(posterior, data, grid, **options)) == len(data[1])  # noqa: B023
    predictive = partial(ll.BNN, samples=6)
    count = runs(posterior, lambda: search(posterior, data, GRID, predictive=predictive, batch_size=5))
    assert count == (6 * len(GRID) + 1) * len(data[1])


# What the scores do not depend on


@pytest.mark.parametrize("form", ["tensors", "loader", "list", "dataset"])
@pytest.mark.parametrize("predictive", [ll.GLM, partial(ll.BNN, samples=5)], ids=["GLM", "BNN"])
def test_batches(form: str, predictive: Any) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    x, y = held_out(truth)
    pairs = TensorDataset(x, y)
    forms: dict[str, Any] = {
        "tensors": (x, y),
        "dataset": pairs,
        "loader": DataLoader(pairs, batch_size=3),
        "list": [(x[:1], y[:1]), (x[1:], y[1:])],
    }
    posterior = truth.fit(ll.Diagonal(), 0.7)
    for objective in ("nll", "ece"):
        options: Any = {"predictive": predictive, "objective": objective}
        whole = search(posterior, (x, y), GRID, **options).scores
        close(search(posterior, forms[form], GRID, batch_size=5, **options).scores, whole)


def test_order_and_subsets_of_the_grid() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(ll.Kron(), 0.7), held_out(truth)
    grid = np.geomspace(0.1, 10, 9)
    scores = search(posterior, data, grid).scores
    close(search(posterior, data, grid[::-1].copy()).scores.flip(0), scores)
    close(search(posterior, data, [grid[4]]).scores, scores[4:5])


def test_differences_are_not_noise() -> None:
    """Neighbours on a fine grid, by three samples of f each: as smooth as the integral itself."""
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(ll.Kron(), 0.7), held_out(truth)
    fine = search(posterior, data, np.geomspace(1.0, 1.01, 11), integrator=ll.MonteCarlo(3)).scores
    steps = fine.diff()
    assert steps.abs().max() < 1e-3
    assert (steps > 0).all() or (steps < 0).all()
    assert steps.diff().abs().max() < 0.05 * steps.abs().max()


# What is chosen


def test_the_choice() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(ll.Kron(), ll.Prior(0.7, 3.0)), held_out(truth)
    wanted = ll.GLM(posterior.with_prior(ll.Prior(2.0, 3.0)))(data[0]).probs

    def distance(p: Any, y: Tensor) -> Tensor:
        return (p.probs - wanted).square().sum()

    choice = ll.Validation(data, [0.5, 1.0, 2.0, 4.0], objective=distance, progress=False)
    found = choice.minimise(posterior)
    assert found.values == (2.0,)
    assert found.place == (2,)
    assert found.objective == "distance"
    assert not found.at_edge
    assert float(found.posterior.prior.precision) == 2.0
    assert float(found.posterior.prior.temperature) == 3.0
    assert found.posterior.curvature is posterior.curvature
    assert float(posterior.prior.precision) == 0.7
    close(ll.GLM(ll.select_prior(posterior, choice))(data[0]).probs, wanted)
    assert "of 4" in repr(found)
    both = search(posterior, data, [0.5, 2.0, 4.0], temperatures=[1.0, 3.0, 9.0], objective=distance)
    assert both.scores.shape == (3, 3)
    assert both.values == (2.0, 3.0)
    heat = search(both.posterior, data, temperatures=[1.0, 3.0, 9.0], objective=distance)
    assert heat.values == (3.0,)
    assert float(heat.posterior.prior.precision) == 2.0
    assert [axis.name for axis in both.axes] == ["prior precision δ", "temperature T"]


def test_a_range() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    found = search(truth.fit(ll.Kron(), 0.7), held_out(truth), bounds=(0.01, 100.0), points=5)
    assert found.axes[0].values == pytest.approx((0.01, 0.1, 1.0, 10.0, 100.0))


def test_of_equal_scores_the_smallest_value() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    for grid in ([2.0, 1.0, 4.0], [4.0, 2.0, 1.0]):
        assert search(truth.fit(ll.Kron()), held_out(truth), grid, objective=lambda p, y: 0.0).values == (1.0,)


def test_the_edge_is_said() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, data = truth.fit(ll.Kron()), held_out(truth)

    def sharpness(p: Any, y: Tensor) -> Tensor:
        return p.entropy().mean()

    with pytest.warns(ll.LinlapWarning, match=r"edge of what was tried: prior precision δ = 10\b.*further"):
        found = search(posterior, data, [1.0, 10.0, 0.1], objective=sharpness)
    assert found.at_edge == ("prior precision δ = 10",)
    assert "at the edge" in repr(found)
    with pytest.warns(ll.LinlapWarning, match="temperature T = 0.1"):
        search(posterior, data, temperatures=[0.1, 1.0], objective=sharpness)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(posterior, data, [1.0], objective=sharpness)
        search(posterior, data, [ll.Prior(1.0, 2.0), ll.Prior(3.0)], objective=sharpness)


# What cannot be done


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": []}, "grid is empty"),
        ({"grid": 3.0}, "grid=3.0; pass several"),
        ({"grid": "123"}, "pass several"),
        ({"grid": [1.0, -1.0]}, "positive"),
        ({"grid": [1.0, float("nan")]}, "positive"),
        ({"grid": [ll.Prior({"nowhere": 1.0, "": 2.0})]}, "neither an inferred parameter"),
        ({"temperatures": []}, "temperatures is empty"),
        ({"temperatures": [0.0]}, "positive"),
        ({"grid": [1.0], "bounds": (0.1, 1.0)}, "exclude each other"),
        ({"bounds": (1.0, 0.1)}, "smaller first"),
        ({"bounds": 3.0}, "two positive numbers"),
        ({"points": 1}, "at least 2"),
        ({"objective": "loss"}, "'nll', 'ece'"),
        ({"objective": lambda p, y: "good"}, "must return one number"),
        ({"objective": lambda p, y: torch.zeros(3)}, "must return one number"),
        ({"objective": lambda p, y: float("nan")}, "NaN under Prior"),
        ({"objective": lambda p, y: float("inf")}, "infinite under every prior"),
        ({"objective": "rmse"}, "rmse is for regression"),
        ({"predictive": "glm"}, "ll.GLM or ll.BNN"),
        ({"predictive": ll.MAP}, "a MAP cannot be scored"),
        ({"predictive": ll.BNN, "integrator": ll.MonteCarlo()}, "takes no integrator"),
        ({"integrator": "mc"}, "pass an object"),
        ({"integrator": ll.GaussHermite()}, "cannot integrate"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior = truth.fit(ll.Kron())
    with pytest.raises((ll.InputError, ll.NotFiniteError), match=words):
        search(posterior, held_out(truth), **({"grid": GRID} if "bounds" not in options else {}) | options)


def test_bad_data() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    posterior, (x, y) = truth.fit(ll.Kron()), held_out(truth)
    for predictive in (ll.GLM, partial(ll.BNN, samples=2)):
        options: Any = {"grid": GRID, "predictive": predictive}
        with pytest.raises(ll.InputError, match="empty"):
            search(posterior, (x[:0], y[:0]), **options)
        with pytest.raises(ll.InputError, match="empty"):
            search(posterior, [], **options)
        with pytest.raises(ll.InputError, match="the classes are 0 to 2"):
            search(posterior, (x, y + 7), **options)
        with pytest.raises(ll.InputError, match="argmax"):
            search(posterior, (x, nn.functional.one_hot(y, 3)), **options)
        with pytest.raises(ll.NotFiniteError, match="NaN"):
            search(posterior, (x / 0, y), **options)
        with pytest.raises(ll.InputError, match="cannot take inputs"):
            search(posterior, (x[:, :2], y), **options)


def test_wrong_posteriors() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    with pytest.raises(ll.InputError, match="a process to ll.GLM"):
        search(process(truth, "everything", "independent"), held_out(truth), GRID, predictive=ll.BNN)
    with pytest.raises(ll.InputError, match="no prior to choose"):
        search(truth.model(), held_out(truth), GRID)
    with pytest.raises(ll.InputError, match="no multiple"):
        search(process(truth, "sparse", "independent"), held_out(truth), [ll.Prior({"0": 0.3, "": 2.0})])
