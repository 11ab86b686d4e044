"""Which weights are inferred: names, modules, patterns, the last layer; what is frozen stays out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import linlap as ll
from tests.cases import BY_NAME
from tests.checks import close
from tests.truth import truth_of


def names(model: nn.Module, parameters: Any) -> list[str]:
    return ll.Network(model, parameters).names


def nested() -> nn.Module:
    return nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)), "head": nn.Linear(4, 2)})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias"]),
        ("last", ["head.weight", "head.bias"]),
        ("head", ["head.weight", "head.bias"]),
        ("head.bias", ["head.bias"]),
        ("body.1", ["body.1.weight", "body.1.bias"]),
        ("*.weight", ["body.0.weight", "body.1.weight", "head.weight"]),
        # In the model's order, each once, whatever the order they are asked in.
        (["head.bias", "body.0", "body.0.bias"], ["body.0.weight", "body.0.bias", "head.bias"]),
        (("body.?.bias",), ["body.0.bias", "body.1.bias"]),
        ((name for name in ["body"]), ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]),
    ],
)
def test_names(parameters: Any, expected: list[str]) -> None:
    assert names(nested(), parameters) == expected


def test_a_layer_that_is_the_whole_model() -> None:
    assert names(nn.Linear(2, 2), "last") == ["weight", "bias"]
    assert names(nn.Linear(2, 2), "bias") == ["bias"]


def test_frozen_weights_are_left_out() -> None:
    model = nested()
    model["head"].weight.requires_grad_(False)
    assert "head.weight" not in names(model, None)
    assert names(model, "last") == ["head.bias"]
    assert names(model, "head") == ["head.bias"]
    model["head"].bias.requires_grad_(False)
    assert names(model, "last") == ["body.1.weight", "body.1.bias"]


def test_the_last_layer_keeps_a_weight_that_is_tied_to_another() -> None:
    """Which goes by its first name."""
    model = BY_NAME["tied_embedding"].build()
    assert names(model, "last") == ["fc.weight", "head.bias"]


def test_a_tied_weight_answers_to_each_of_its_names() -> None:
    model = BY_NAME["tied_embedding"].build()
    assert names(model, "head.weight") == ["fc.weight"]
    assert names(model, "head") == ["fc.weight", "head.bias"]


@pytest.mark.parametrize("parameters", ["0", ["2.bias"], "last", "*.weight"])
def test_a_choice_has_the_columns_of_the_whole(parameters: Any) -> None:
    truth = truth_of("mlp_2_hidden")
    network = ll.Network(truth.model(), parameters)
    whole = ll.Network(truth.model()).linearize(truth.x).jacobian
    jacobian = network.linearize(truth.x).jacobian
    close(jacobian.dense(), torch.cat([whole.blocks[name].dense() for name in network.names], -1), 1e-12)


def test_every_choice_of_two_layers_gives_the_full_posterior_of_those() -> None:
    truth = truth_of("mlp_2_hidden")
    posterior = truth.fit(ll.Full(), 0.7, parameters=["0", "4"])
    chosen = torch.cat([torch.arange(0, 24), torch.arange(24 + 35, 71)])
    H = truth.H[chosen][:, chosen]
    close(posterior.precision.dense(), H + 0.7 * torch.eye(len(H), dtype=torch.float64), 1e-12)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("hed", "parameters='hed' matches no trainable parameter. There are: body.0.weight.*'last'"),
        (["head", "tail.*"], "'tail.*'"),
        ([], "nothing to infer"),
        ("", "matches no"),
    ],
)
def test_what_is_not_there(parameters: Any, words: str) -> None:
    with pytest.raises(ll.InputError, match=words):
        ll.Network(nested(), parameters)


@pytest.mark.parametrize("parameters", [3, nn.Linear(2, 2), [nn.Parameter(torch.ones(2))], [None]])
def test_what_is_no_name(parameters: Any) -> None:
    with pytest.raises(ll.InputError, match="names"):
        ll.Network(nested(), parameters)
