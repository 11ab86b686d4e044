"""Laws under several priors at once are those under each by itself, in weight space and in function space."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import linlap as ll
from linlap.posteriors import WeightPosterior
from tests.cases import BY_NAME, QUICK, STRUCTURES
from tests.checks import close, varied
from tests.structures import StructureCase
from tests.truth import Truth, truth_of

pytestmark = pytest.mark.filterwarnings(
    "ignore::linlap.LinlapWarning", "ignore:There is a performance drop:UserWarning"
)
TIGHT = 1e-10
KINDS = ["mlp_many_data", "positions", "conv2d", "conv2d_groups", "conv_transpose2d", "layer_norm", "embedding", "lstm"]


def by_layer(truth: Truth, factor: float = 1.0) -> dict[str, float]:
    modules = dict.fromkeys(name.rpartition(".")[0] for name in truth.names)
    return {module: factor * (0.3 + place) for place, module in enumerate(modules)}


def same_laws(posterior: Any, x: Any, priors: list[Any], tolerance: float = TIGHT, memory: int | None = None) -> None:
    for options in ({"memory": memory}, {"diagonal": True}):
        found = posterior.latents(x, priors, **options)
        assert len(found) == len(priors)
        for law, prior in zip(found, priors, strict=True):
            expected = posterior.with_prior(prior).latent(x, diagonal=options.get("diagonal", False))
            close(law.mean, expected.mean, tolerance)
            close(law.cov, expected.cov, tolerance)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", KINDS)
def test_structures(case: StructureCase, name: str) -> None:
    truth = truth_of(name)
    posterior = truth.fit(case.structure, 0.7)
    same_laws(posterior, truth.x, [0.1, ll.Prior(3.0, 0.5), 100.0], memory=20_000)
    layered = ll.Prior(by_layer(truth)), ll.Prior(by_layer(truth, 10.0), 2.0)
    same_laws(posterior, truth.x, [layered[0], 0.1, layered[1], ll.Prior(varied(len(truth.theta)))])


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_networks(case: Any) -> None:
    truth = truth_of(case.name)
    same_laws(truth.fit(ll.Kron(), 0.7), truth.x, [0.1, 3.0])


def test_refined_posteriors() -> None:
    truth = truth_of("mlp_many_data")
    fitted = truth.fit(ll.Kron(), 0.7)
    shift = 0.1 * varied(len(truth.theta))
    posterior = WeightPosterior(
        fitted.network, fitted.likelihood, fitted.structure, fitted.curvature, fitted.prior, shift
    )
    same_laws(posterior, truth.x, [0.1, 3.0])


def test_priors_are_checked() -> None:
    posterior = truth_of("mlp_2_hidden").fit(ll.Kron())
    x = BY_NAME["mlp_2_hidden"].inputs()
    with pytest.raises(ll.InputError, match="at least one"):
        posterior.latents(x, [])
    with pytest.raises(ll.InputError, match="pass several"):
        posterior.latents(x, 3.0)
    with pytest.raises(ll.InputError, match="positive"):
        posterior.latents(x, [1.0, -1.0])
    with pytest.raises(ll.InputError, match="neither an inferred parameter"):
        posterior.latents(x, [ll.Prior({"nowhere": 1.0, "": 2.0})])


def test_gradients_of_a_prior_are_not_followed() -> None:
    truth = truth_of("mlp_2_hidden")
    precision = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (law,) = truth.fit(ll.Full()).latents(truth.x, [ll.Prior(precision)])
    assert not law.cov.requires_grad


# Function space

CHOICES = {"everything": ll.Everything(), "subset": ll.Subset(5), "top": ll.TopM(5), "sparse": ll.Sparse(5)}
MULTIPLES = [0.1, ll.Prior(3.0, 0.5), 0.7, 100.0]


def process(truth: Truth, choice: str, outputs: Any, prior: Any = 0.7) -> Any:
    data = (truth.x, truth.y)
    return ll.gaussian_process(truth.model(), data, truth.likelihood, CHOICES[choice], outputs, prior, progress=False)


@pytest.mark.parametrize("outputs", ["coupled", "independent"])
@pytest.mark.parametrize("choice", CHOICES)
def test_processes(choice: str, outputs: str) -> None:
    truth = truth_of("mlp_many_data")
    same_laws(process(truth, choice, outputs), truth.x, MULTIPLES, memory=20_000)


@pytest.mark.parametrize("outputs", ["coupled", "independent"])
@pytest.mark.parametrize("choice", ["everything", "sparse"])
def test_processes_with_a_prior_by_layer(choice: str, outputs: str) -> None:
    """Multiples of it, and where the choice of inputs allows it others among them."""
    truth = truth_of("mlp_many_data")
    posterior = process(truth, choice, outputs, ll.Prior(by_layer(truth)))
    priors = [ll.Prior(by_layer(truth, 3.0)), ll.Prior(by_layer(truth, 0.2), 2.0)]
    same_laws(posterior, truth.x, priors)
    if choice == "sparse":
        with pytest.raises(ll.InputError, match="no multiple"):
            posterior.latents(truth.x, [*priors, 1.0])
    else:
        same_laws(posterior, truth.x, [priors[0], 1.0, priors[1], ll.Prior(varied(len(truth.theta)))])


@pytest.mark.parametrize("name", ["conv2d", "lstm", "mlp_1_hidden", "embedding"])
def test_processes_of_other_networks(name: str) -> None:
    truth = truth_of(name)
    for outputs in ("coupled", "independent"):
        data = (truth.x, truth.y)
        posterior = ll.gaussian_process(truth.model(), data, truth.likelihood, None, outputs, 0.7, progress=False)
        same_laws(posterior, truth.x, MULTIPLES)
