"""Inputs and outputs in every form, of sizes that differ from call to call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linlap as ll
from tests import reference
from tests.cases import BY_NAME
from tests.checks import close, noise
from tests.networks.forward import after_fc, pooled
from tests.networks.parts import Wired
from tests.truth import truth_of

VARIED = ["mlp_2_hidden", "positions", "conv2d", "embedding", "lstm", "multihead_attention", "tuple", "dict_keywords"]


@pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
@pytest.mark.parametrize("name", [*VARIED, "dict_whole", "positions_first"])
def test_one_at_a_time_is_all_at_once(name: str) -> None:
    """The first call, which settles how each parameter is taken, sees one input only."""
    truth = truth_of(name)
    network = ll.Network(truth.model())
    for n in range(len(truth.f)):
        lin = network.linearize(reference.rows(truth.x, n, n + 1))
        close(lin.mean, truth.f[n : n + 1])
        close(lin.jacobian.dense(), truth.J[n : n + 1])
    close(network.linearize(truth.x).jacobian.dense(), truth.J)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_sequences_of_other_lengths_than_the_first(length: int) -> None:
    truth = truth_of("positions")
    network = ll.Network(truth.model())
    network.linearize(truth.x)
    x = noise(3, length, 3)
    f, J = reference.jacobian(truth.model(), x, truth.names)
    lin = network.linearize(x)
    close(lin.mean, f)
    close(lin.jacobian.dense(), J)


def test_images_of_other_sizes_than_the_first() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)
    ).double()
    names = reference.names_of(model)
    posterior = ll.laplace(model, (noise(4, 2, 6, 6), torch.tensor([0, 1, 0, 1])), ll.Categorical(), progress=False)
    x = noise(3, 2, 9, 4)
    _, J = reference.jacobian(model, x, names)
    Σ = torch.linalg.inv(posterior.precision.dense())
    close(posterior.latent(x).cov, reference.latent_covariance(J, Σ))


class Record(dict[str, Any]):
    """As Hugging Face's inputs: a mapping that is no plain dict."""


def test_mappings_and_lists_are_taken_as_dicts_and_tuples() -> None:
    truth = truth_of("dict_keywords")
    close(ll.Network(truth.model()).linearize(Record(truth.x)).jacobian.dense(), truth.J)
    truth = truth_of("tuple")
    close(ll.Network(truth.model()).linearize(list(truth.x)).jacobian.dense(), truth.J)


def test_what_is_no_tensor_goes_along() -> None:
    def use(m: Any, x: Tensor, scale: float) -> Tensor:
        return after_fc(m, scale * x)

    model = Wired(use, fc=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()
    x = noise(4, 3)
    expected = ll.Network(model).linearize((2.0 * x, 1.0)).mean
    close(ll.Network(model).linearize({"x": x, "scale": 2.0}).mean, expected)
    close(ll.Network(model).linearize((x, 2.0)).mean, expected)


def test_numbers_that_are_no_weights_of_the_models_dtype() -> None:
    """Integer inputs beside float32 weights."""
    truth = truth_of("embedding")
    lin = ll.Network(truth.model().float()).linearize(truth.x)
    assert lin.mean.dtype == torch.float32
    close(lin.jacobian.dense(), truth.J, 1e-5)


def test_seeds_and_weights_that_do_not_fit() -> None:
    truth = truth_of("mlp_2_hidden")
    network, (n, c) = ll.Network(truth.model()), truth.f.shape
    v = network.named(network.vector())
    for seeds in (noise(n, c), noise(n + 1, 1, c), noise(n, 1, c + 1), noise(n, 1, c).float()):
        with pytest.raises(ll.InputError, match=rf"seeds is torch.float.*pass a tensor torch.float64 \[{n}, .*{c}\]"):
            network.linearize(truth.x, seeds)
    for u in (noise(n), noise(n, c + 1), noise(n, c).float(), None):
        with pytest.raises(ll.InputError, match=rf"u is .*pass a tensor torch.float64 \[{n}, {c}\] on cpu"):
            network.vjp(truth.x, u)  # type: ignore[arg-type]
    for wrong in (network.vector(), {**v, "other": v["0.bias"]}, {"0.bias": v["0.bias"]}):
        with pytest.raises(ll.InputError, match="pass a dict with a tensor for each of .'0.bias'"):
            network.jvp(truth.x, wrong)  # type: ignore[arg-type]
    with pytest.raises(ll.InputError, match=r"v\['0.bias'\] is torch.float64 \[1\]"):
        network.jvp(truth.x, {**v, "0.bias": noise(1)})


def test_outputs_of_one_axis_are_a_column() -> None:
    truth = truth_of("output_vector")
    posterior = truth.fit(ll.Full())
    assert posterior.latent(truth.x).mean.shape == (4, 1)
    # One target an input is enough.
    column = truth.fit(ll.Full(), data=(truth.x, truth.y.reshape(-1)))
    close(column.latent(truth.x).cov, posterior.latent(truth.x).cov)


def test_outputs_as_logits_of_a_record() -> None:
    model = Wired(
        lambda m, x: SimpleNamespace(logits=after_fc(m, x)), fc=nn.Linear(3, 4), head=nn.Linear(4, 2)
    ).double()
    close(ll.Network(model).linearize(noise(4, 3)).mean, after_fc(model, noise(4, 3)).detach())


def wrong_output(change: Any) -> nn.Module:
    return Wired(lambda m, x: change(pooled(m, x)), fc=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f[:, None].expand(-1, 5, -1), r"\(5, 5, 2\) for 5 inputs.*\[n\] or \[n, C\].*pixel or token"),
        (lambda f: f.T, r"\(2, 5\) for 5 inputs"),
        (lambda f: f.mean(), r"shape \(\) for 5 inputs"),
        (lambda f: f[:, :0], r"\(5, 0\)"),
        (lambda f: (f, f), "tuple.*tensor"),
        (lambda f: {"out": f}, "dict"),
        (lambda f: None, "NoneType"),
    ],
)
def test_outputs_that_cannot_be(change: Any, words: str) -> None:
    with pytest.raises(ll.InputError, match=words):
        ll.Network(wrong_output(change)).linearize(noise(4, 5, 3))


@pytest.mark.parametrize("parameters", [None, "last"])
def test_a_compiled_wrapper_is_looked_into(parameters: Any) -> None:
    truth = truth_of("mlp_2_hidden")
    wrapped = torch.compile(truth.model())
    lin = ll.Network(wrapped, parameters).linearize(truth.x)
    close(lin.mean, truth.f)


def test_a_budget_of_bytes_is_kept_and_told() -> None:
    truth = truth_of("conv2d")
    network = ll.Network(truth.model())
    each = network.bytes_per_input(truth.x)
    assert each > 8 * truth.J[0, 0].numel() / 10
    assert network.batch_for(truth.x, memory=10 * each) == 10
    assert network.batch_for(truth.x, memory=1) == 1
    assert network.bytes_per_input(truth.x, dense=True) > each


@pytest.mark.parametrize("name", ["conv_reused", "tied_linears"])
def test_weights_in_several_places_are_put_back(name: str) -> None:
    """torch's own functional call leaves replaced weights in a module that is registered twice."""
    truth = truth_of(name)
    network = ll.Network(truth.model())
    before = {key: value.clone() for key, value in network.model.state_dict().items()}
    with torch.no_grad():
        network.outputs_at(network.named(noise(network.size)), truth.x)
    network.jvp(truth.x, network.named(noise(network.size)))
    assert all(torch.equal(value, before[key]) for key, value in network.model.state_dict().items())
    assert all(p is network.theta[key] for key, p in network.model.named_parameters())


def test_forward_mode_is_used_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the blocks where it would mean another derivative."""
    for name, expected in {"mlp_2_hidden": True, "embedding_padding": False, "body_without_grad": False}.items():
        truth = truth_of(name)
        network = ll.Network(truth.model())
        network.jvp(truth.x, network.named(noise(network.size)))
        assert network._forward_mode is expected, name
    assert BY_NAME["embedding_padding"].build().fc.padding_idx is not None


def test_padding_that_comes_after_the_first_inputs() -> None:
    """Forward mode moves the padding row, which is a constant; the first inputs do not show it."""
    model = BY_NAME["embedding_padding"].build()
    x = torch.tensor([[0, 2, 3], [2, 3, 0], [3, 3, 0], [1, 1, 2], [1, 0, 1]])
    _, J = reference.jacobian(model, x, reference.names_of(model))
    network = ll.Network(model)
    v = noise(network.size)
    network.jvp(x[:3], network.named(v))
    close(network.jvp(x, network.named(v)), J @ v)
