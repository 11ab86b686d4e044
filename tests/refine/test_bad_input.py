"""What a refinement refuses, and the call it names instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import linlap as ll
from tests.checks import noise
from tests.networks.parts import mlp

X, Y = noise(8, 3), torch.arange(8) % 3


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp(3, 4, 3).double()


def weights(structure: Any = None) -> Any:
    return ll.laplace(model(), (X, Y), ll.Categorical(), structure or ll.Full(), 1.0, progress=False)


def process() -> Any:
    return ll.gaussian_process(model(), (X, Y), ll.Categorical(), prior=1.0, progress=False)


@pytest.mark.parametrize("method", [ll.GlmMap(), ll.NaturalGradient(), ll.NaturalGradient("kron")])
def test_a_process_needs_a_method_of_its_own(method: Any) -> None:
    with pytest.raises(ll.InputError, match=r"refines a posterior over weights.* use ll.GpMode\(\)"):
        ll.refine(process(), (X, Y), method)


def test_weights_need_a_method_of_their_own() -> None:
    with pytest.raises(ll.InputError, match=r"over weights; use ll.GlmMap\(\)"):
        ll.refine(weights(), (X, Y), ll.GpMode())
    with pytest.raises(ll.InputError, match=r"posteriors\[1\]: .*over weights; use ll.GlmMap\(\)"):
        ll.refine([process(), weights()], [(X, Y)] * 2, ll.GpMode(), progress=False)


def test_each_kind_by_its_method() -> None:
    assert ll.refine(process(), (X, Y), ll.GpMode(), progress=False).refinement.method == "GpMode"
    assert ll.refine([process()], [(X, Y)], ll.GpMode(), progress=False)[0].refinement.method == "GpMode"
    assert ll.refine(weights(), (X, Y), ll.GlmMap(), progress=False).refinement.method == "GlmMap"


@pytest.mark.parametrize(
    "method",
    [
        ll.GlmMap(),
        ll.GlmMap(batch_size=4, steps=2),
        ll.NaturalGradient(steps=2),
        ll.NaturalGradient("kron", steps=2),
        ll.GpMode(),
    ],
)
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X[:5], Y[:5]), "on 8 data and these are 5"),
        ((noise(8, 4), Y), "cannot take inputs of shape"),
        ((X, torch.full((8,), 3)), "the classes are 0 to 2"),
        ((X, Y[:5]), "8 inputs but y 5 targets"),
        (X, "data is a Tensor"),
    ],
)
def test_other_data(method: Any, data: Any, said: str) -> None:
    posterior = process() if isinstance(method, ll.GpMode) else weights()
    with pytest.raises(ll.InputError, match=said):
        ll.refine(posterior, data, method, progress=False)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, True, "fast", float("nan")])
@pytest.mark.parametrize("method", [ll.GlmMap, ll.NaturalGradient])
def test_rates(method: Any, rate: Any) -> None:
    with pytest.raises(ll.InputError, match=r"rate=.*; pass a step size in \(0, 1\]"):
        method(rate=rate)


@pytest.mark.parametrize("steps", [0, -3, 2.5, True, "many"])
@pytest.mark.parametrize("method", [ll.GlmMap, ll.NaturalGradient, ll.GpMode])
def test_steps(method: Any, steps: Any) -> None:
    with pytest.raises(ll.InputError, match="steps=.*; pass a positive number of steps"):
        method(steps=steps)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ll.GlmMap("sgd"), "solver='sgd'; pass 'auto'"),  # type: ignore[arg-type]
        (lambda: ll.GlmMap(tolerance=0.0), "tolerance=0.0; pass a positive number"),
        (lambda: ll.GlmMap("newton", batch_size=8), "minibatches have a solver of their own"),
        (lambda: ll.GlmMap(batch_size=0), "batch_size=0; pass a whole number"),
        (lambda: ll.NaturalGradient("low rank"), "covariance='low rank'; pass 'full'"),  # type: ignore[arg-type]
        (lambda: ll.NaturalGradient(batch_size=8), "takes all data at once.*covariance='kron'"),
        (lambda: ll.NaturalGradient(samples=0), "samples=0; pass a whole number"),
        (lambda: ll.NaturalGradient(patience=0), "patience=0; pass a whole number"),
        (lambda: ll.GpMode(tolerance=2.0), r"tolerance=2.0; pass a number in \(0, 1\)"),
    ],
)
def test_settings(make: Any, said: str) -> None:
    with pytest.raises(ll.InputError, match=said):
        make()


@pytest.mark.parametrize("method", [ll.GlmMap, "mode", None])
def test_methods_are_objects(method: Any) -> None:
    with pytest.raises(ll.InputError, match=r"pass an object: ll.GlmMap\(\)"):
        ll.refine(weights(), (X, Y), method)


def test_lists_go_with_lists() -> None:
    for posteriors, data in (([weights()], (X, Y)), ([weights()] * 2, [(X, Y)]), ([], [])):
        with pytest.raises(
            ll.InputError, match="posteriors and .*; pass at least one, and a list with the data of each"
        ):
            ll.refine(posteriors, data, ll.GlmMap())
