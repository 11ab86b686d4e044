"""Bad input: an error that says what was given, why it cannot be and what to pass; and nothing half-done is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset

import linlap as ll
from linlap.network import memory
from tests.cases import STRUCTURES
from tests.checks import close, noise, rest_of, same
from tests.networks.forward import after_fc
from tests.networks.parts import Wired, mlp

NAN, INF = float("nan"), float("inf")
X, Y = noise(6, 3), torch.tensor([0, 1, 2, 1, 0, 2])


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return mlp(3, 4, 3).double()


def fit(data: Any = None, likelihood: Any = None, structure: Any = None, model: Any = None, **options: Any) -> Any:
    return ll.laplace(
        model_of() if model is None else model,
        (X, Y) if data is None else data,
        ll.Categorical() if likelihood is None else likelihood,
        structure,
        progress=False,
        **options,
    )


def refused(words: str, kind: type[Exception] = ll.InputError, **given: Any) -> None:
    """Refused with these words, the model left as it was and then fitted rightly."""
    model = given.setdefault("model", model_of())
    before = rest_of(model)
    with pytest.raises(kind, match=words) as caught:
        fit(**given)
    assert isinstance(caught.value, ll.LinlapError)
    if isinstance(given.get("data"), DataLoader):  # which draws a number each time, even where it does not shuffle
        torch.set_rng_state(before["rng"])
    assert same(rest_of(model), before)
    again = fit(model=model_of())
    close(again.latent(X).cov, fit().latent(X).cov, 0.0)


# Data


class Once:
    """Looks as if it could be gone through again, and gives nothing the second time."""

    def __init__(self) -> None:
        self.left = iter([(X[:3], Y[:3]), (X[3:], Y[3:])])

    def __iter__(self) -> Iterator[Any]:
        return self.left


class Fewer:
    """One batch less each time."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        yield from [(X, Y)] * max(1, 4 - self.times)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: (X[:0], Y[:0]), "empty.*at least one"),
        (list, "empty.*no batch"),
        (lambda: DataLoader(TensorDataset(X[:0], Y[:0])), "empty|no batch"),
        (lambda: [(X[:0], Y[:0])], "no inputs.*at least one"),
        (lambda: ((x, y) for x, y in [(X, Y)]), "generator.*only once.*(X, y)"),
        (lambda: zip([X], [Y], strict=True), "zip.*only once"),
        (lambda: map(tuple, [(X, Y)]), "map.*only once"),
        (lambda: X, "data is a Tensor; pass .*DataLoader"),
        (lambda: X.numpy(), "data is a ndarray; pass"),
        (lambda: {"x": X, "y": Y}, "data is a dict; pass"),
        (lambda: "train.csv", "data is a str; pass"),
        (lambda: 3, "data is a int; pass"),
        (lambda: (X, Y[:4]), "6 inputs but y 4 targets"),
        (lambda: (X, None), "Tensor and NoneType; they must be tensors or arrays"),
        (lambda: (X, Y.tolist()), "tensors or arrays"),
        (lambda: (X, torch.tensor(1)), "6 inputs but y 0 targets"),
        (lambda: (None, Y), "tensors or arrays"),
        (lambda: (torch.tensor(1.0), Y), "first axis|inputs"),
        (lambda: [(X, Y[:4])], r"batch of 6 inputs came with targets \(4,\)"),
        (lambda: [(X, Y, Y)], "batch is a tuple of length 3; each must be a pair"),
        (lambda: [X, Y], "batch is a Tensor; each must be a pair"),
        (lambda: [("words", Y)], "type str"),
        (lambda: [(X, [0, 1, 2, 1, 0, 2])], "targets"),
        (lambda: [(X, Y), (X[:, :2], Y)], r"inputs of shape \[n, 2\]"),
        (lambda: TensorDataset(X), "pair"),
        (lambda: [{"x": X}], "dict.*'labels'"),
    ],
)
def test_data(data: Callable[[], Any], words: str) -> None:
    refused(words, data=data())


@pytest.mark.parametrize("data", [Once, Fewer])
@pytest.mark.parametrize("structure", [ll.LowRank(3), ll.Kron(corrected=True)], ids=str)
def test_data_that_cannot_be_gone_through_twice_after_all(data: Any, structure: Any) -> None:
    """Several passes, of which the later ones find less: the sums would be wrong without a word."""
    refused("first pass .* found 6 inputs|first pass .* found 18 inputs", data=data(), structure=structure)


@pytest.mark.parametrize("size", [0, -2, 1.5, True, None])
def test_batch_sizes(size: Any) -> None:
    refused("batch_size=.*positive", batch_size=size)


# Numbers


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_inputs_that_are_no_numbers(bad: float) -> None:
    x = X.clone()
    x[4, 1] = bad
    refused(r"inputs \(shape \(6, 3\)\) have NaN or infinite.*impute", ll.NotFiniteError, data=(x, Y))
    refused("inputs .*NaN or infinite", ll.NotFiniteError, data=[(X, Y), (x, Y)])
    with pytest.raises(ll.NotFiniteError, match="inputs"):
        fit().latent(x)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_weights_that_are_no_numbers(bad: float) -> None:
    model: Any = model_of()
    with torch.no_grad():
        model[2].weight[0, 0] = bad
    refused("weights '2.weight' have NaN or infinite", ll.NotFiniteError, model=model)
    refused("weights '2.weight'", ll.NotFiniteError, model=model, parameters="0")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_outputs_that_are_no_numbers(bad: float) -> None:
    def use(m: Any, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 1e3, bad, after_fc(m, x))

    model = Wired(use, fc=nn.Linear(3, 4), head=nn.Linear(4, 3)).double()
    x = X.clone()
    x[5] = 1e4
    refused("outputs have NaN or infinite", ll.NotFiniteError, model=model, data=(x, Y))
    posterior = fit(model=model)
    for call in (posterior.latent, ll.MAP(posterior), ll.GLM(posterior)):
        with pytest.raises(ll.NotFiniteError, match="outputs"):
            call(x)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X.float(), r"inputs are torch.float32 but the weights are torch.float64; cast"),
        (X.half(), "inputs are torch.float16"),
        (X.to("meta"), "inputs are on meta but the model is on cpu; move"),
        (X.long(), "the model cannot take inputs"),
        (X[:, :2], r"the model cannot take inputs of shape \[n, 2\]"),
        (X[0, 0], "first axis"),
        (X[:0], "no inputs"),
        ("words", "type str.*torch.Tensor"),
        (None, "type NoneType"),
        ((), "no tensor"),
        ({}, "no tensor"),
        ((X, X[:4]), "first axis"),
        (X.numpy(), "ndarray.*torch.Tensor"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["latent", "sample_functions", "GLM", "MAP", "BNN"])
def test_inputs_of_a_posterior(x: Any, words: str, method: str) -> None:
    posterior = fit()
    before = posterior.latent(X).cov
    calls: dict[str, Callable[[Any], Any]] = {
        "latent": posterior.latent,
        "sample_functions": lambda x: posterior.sample_functions(x, 2),
        "GLM": ll.GLM(posterior),
        "MAP": ll.MAP(posterior),
        "BNN": ll.BNN(posterior, samples=2),
    }
    with pytest.raises(ll.InputError, match=words):
        calls[method](x)
    assert torch.equal(posterior.latent(X).cov, before)


def test_numpy_data_of_another_dtype() -> None:
    refused("float32 but the weights are torch.float64", data=(X.numpy().astype(np.float32), Y.numpy()))


def test_a_posterior_of_diagonal_and_joint() -> None:
    with pytest.raises(ll.InputError, match="exclude each other"):
        fit().latent(X, diagonal=True, joint=True)


# Labels


@pytest.mark.parametrize(
    ("likelihood", "y", "words"),
    [
        (ll.Categorical(), Y + 1, "is 3.*0 to 2"),
        (ll.Categorical(), Y - 1, "is -1.*0 to 2"),
        (ll.Categorical(), Y.double(), "float64.*long"),
        (ll.Categorical(), Y + 0.5, "not a class"),
        (ll.Categorical(), nn.functional.one_hot(Y), "argmax"),
        (ll.Categorical(), Y[:, None], "shape \\[n\\]"),
        (ll.Bernoulli(), Y, r"\(6,\).*\[6, 3\]"),
        (ll.Bernoulli(), noise(6, 3), "y\\[0, 0\\]"),
        (ll.Poisson(), -torch.ones(6, 3), "y\\[0, 0\\] is -1"),
        (ll.Poisson(), torch.full((6, 3), 0.5), "0.5"),
        (ll.Gaussian(), noise(6, 2), r"\(6, 2\).*\[6, 3\]"),
        (ll.Gaussian(), torch.full((6, 3), NAN), "nan.*finite"),
        (ll.Gaussian(), noise(6, 3) * (1 + 1j), "complex"),
        (ll.Gaussian([1.0, 2.0]), noise(6, 3), "2 noise levels for 3 outputs"),
        (ll.HeteroscedasticGaussian(), noise(6, 1), "3 outputs"),
    ],
    ids=str,
)
def test_labels(likelihood: Any, y: Tensor, words: str) -> None:
    refused(words, data=(X, y), likelihood=likelihood)


def test_labels_in_a_later_batch() -> None:
    refused("is 9.*0 to 2", data=[(X, Y), (X, torch.full((6,), 9))])


@pytest.mark.parametrize("noise_level", [0.0, -1.0, NAN, INF, [1.0, 0.0], "loud", torch.zeros(0), [[1.0]]])
def test_noise(noise_level: Any) -> None:
    with pytest.raises(ll.InputError, match="noise=.*deviation|noise=.*number"):
        ll.Gaussian(noise_level)


# Priors


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF, torch.tensor([1.0, 0.0]), {"0": -1.0}, "strong", None, [], {}])
def test_prior_precisions(value: Any) -> None:
    with pytest.raises(ll.InputError, match="prior.*(positive|precision)"):
        ll.Prior(value)
    if value is not None:  # chosen by the evidence
        refused("prior", prior=value)
    with pytest.raises(ll.InputError, match="prior"):
        fit().with_prior(value)


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF, "cold", torch.tensor([1.0, 2.0])])
def test_temperatures(value: Any) -> None:
    with pytest.raises(ll.InputError, match="temperature"):
        ll.Prior(1.0, value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(5), r"\(5,\) for 31 weights"),
        (torch.ones(31, 1), r"\(31, 1\) for 31 weights"),
        ({"0": 1.0}, "no precision for '2.weight'"),
        ({"": 1.0, "0.weight": torch.ones(3, 4)}, r"'0.weight' has shape \(3, 4\), the parameter \(4, 3\)"),
        ({"": 1.0, "0.wieght": 2.0}, "'0.wieght'"),
        ({"": 1.0, "3": 2.0}, "'3'"),
    ],
)
def test_priors_that_do_not_fit_the_network(value: Any, words: str) -> None:
    refused(words, prior=ll.Prior(value))
    posterior = fit()
    with pytest.raises(ll.InputError, match=words):
        posterior.with_prior(ll.Prior(value))
    assert torch.equal(posterior.latent(X).cov, fit().latent(X).cov)


# Models


def random_model() -> nn.Module:
    return Wired(lambda m, x: nn.functional.dropout(after_fc(m, x)), fc=nn.Linear(3, 4), head=nn.Linear(4, 3)).double()


def coupled_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).double()


def test_models_whose_outputs_are_not_a_function_of_the_input() -> None:
    refused("different outputs for the same input.*remove what is random", model=random_model())
    refused("depends on the others in its batch.*running statistics", model=coupled_model())


def without_gradients(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return after_fc(m, x)


class Forward(torch.autograd.Function):
    """An operation of the user's own, without a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()


@pytest.mark.parametrize("use", [without_gradients, lambda m, x: after_fc(m, x).detach()])
def test_models_that_keep_gradients_back(use: Any) -> None:
    refused("no gradient .* torch.no_grad", model=Wired(use, fc=nn.Linear(3, 4), head=nn.Linear(4, 3)).double())


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), weight_norm(nn.Linear(3, 4))])
def test_models_that_cannot_be_differentiated(layer: nn.Module) -> None:
    model = Wired(lambda m, x: m.head(Forward.apply(m.fc(x))), fc=layer, head=nn.Linear(4, 3)).double()
    refused("cannot be differentiated by its weights: .*backward", model=model)


def test_nothing_to_infer() -> None:
    refused("no parameter with requires_grad=True", model=model_of().requires_grad_(False))
    refused("nothing to infer|no parameter", model=nn.Tanh())
    refused("matches no trainable parameter", parameters="1")
    refused("nothing to infer", parameters=[])


@pytest.mark.parametrize("model", [None, "model.pt", nn.functional.relu, nn.Linear])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(ll.InputError, match="model is a .*; pass a trained torch.nn.Module"):
        ll.laplace(model, (X, Y), ll.Categorical())


@pytest.mark.parametrize("likelihood", ["classification", ll.Categorical, nn.CrossEntropyLoss(), 3])
def test_what_is_no_likelihood(likelihood: Any) -> None:
    refused("likelihood is .*pass an object such as ll.Categorical", likelihood=likelihood)


@pytest.mark.parametrize("structure", ["kron", ll.Kron, 3])
def test_what_is_no_structure(structure: Any) -> None:
    refused("structure is .*pass an object such as ll.Kron", structure=structure)


def test_likelihoods_that_do_not_fit_the_outputs() -> None:
    one = nn.Linear(3, 1).double()
    refused("1 outputs.*Bernoulli", model=one)


# Memory


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 10_000)


@pytest.mark.usefixtures("little")
def test_more_memory_than_there_is() -> None:
    """The number comes first, before anything is allocated, with what to do instead."""
    model = mlp(3, 40, 3).double()
    words = r"Full\(\) over 283 weights needs about [\d.]+ MiB, and cpu has 9.77 KiB free. .*Kron"
    with pytest.raises(ll.MemoryBudgetError, match=words) as caught:
        fit(model=model, structure=ll.Full())
    assert isinstance(caught.value, MemoryError)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
def test_every_structure_says_what_it_needs(case: Any) -> None:
    """It grows with the network; and the most demanding comes first."""
    small, large = ({"w": torch.Size([k, k])} for k in (10, 100))
    assert 0 < case.structure.bytes_needed(small) < case.structure.bytes_needed(large)
    assert case.structure.bytes_needed(large) <= ll.Full().bytes_needed(large)


def test_a_joint_covariance_of_too_many_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = fit()
    posterior.latent(X)
    monkeypatch.setattr(memory, "available", lambda device: 10_000)
    with pytest.raises(ll.MemoryBudgetError, match="joint covariance of 600 inputs needs about .*fewer inputs"):
        posterior.latent(X.repeat(100, 1), joint=True)
    assert posterior.latent(X).cov.shape == (6, 3, 3)


def test_large_vocabularies_and_biases_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot inputs have a diagonal second moment: 60 000 words are no 60 000² numbers; nor are so many biases."""
    free = 1 << 28
    monkeypatch.setattr(memory, "available", lambda device: free)
    words = nn.Sequential(nn.Embedding(60_000, 2), nn.Flatten(), nn.Linear(2, 3))
    posterior = fit((torch.randint(60_000, (6, 1)), Y), model=words)
    assert posterior.latent(torch.tensor([[5], [59_999]])).cov.shape == (2, 3, 3)
    scale = Wired(lambda m, x: m.head(x.repeat(1, 4000) * m.scale), scale=nn.Parameter(torch.ones(12_000)), head=head())
    assert fit((X.float(), Y), model=scale).latent(X.float()).cov.shape == (6, 3, 3)


def head() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (3, 4000)), Mean(), nn.Linear(3, 3))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(2)


# Models that cannot be taken


def test_models_that_cannot_be_copied() -> None:
    model = model_of()
    model.lock = threading.Lock()
    with pytest.raises(ll.InputError, match="cannot be copied"):
        fit(model=model)
    with pytest.raises(ll.InputError, match="torch.jit"):
        fit(model=torch.jit.trace(model_of(), X))
    with pytest.raises(ll.InputError, match="lazy layer"):
        fit(model=nn.Sequential(nn.LazyLinear(3)))


def test_predictives_of_other_things() -> None:
    posterior = fit()
    with pytest.raises(ll.InputError, match="integrator=.*object"):
        ll.GLM(posterior, ll.Probit)  # type: ignore[arg-type]
    with pytest.raises(ll.InputError, match="no posterior"):
        ll.GLM(model_of())  # type: ignore[arg-type]
    with pytest.raises(ll.InputError, match="generator=3"):
        ll.BNN(posterior, 5, generator=3)  # type: ignore[arg-type]
    with pytest.raises(ll.InputError, match="no use for seeds"):
        fit(structure=ll.LowRank(2), seeds=3)
    with pytest.raises(ll.InputError, match="steps="):
        ll.LowRank(3, steps=5.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda posterior: posterior.sample(2, generator=3),
        lambda posterior: posterior.sample_functions(X, 2, seed="a"),
        lambda posterior: posterior.latent(X, memory="1GB"),
        lambda posterior: posterior.latent(X, memory=0),
        lambda posterior: ll.Kron(dense_limit=-1),
        lambda posterior: ll.Kron(dense_limit="all"),  # type: ignore[arg-type]
        lambda posterior: ll.Kron(corrected="yes"),  # type: ignore[arg-type]
    ],
)
def test_options_that_cannot_be(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ll.InputError, match="generator=3|seed='a'|memory=|dense_limit=|corrected="):
        call(fit(prior=1.0))


def test_whole_numbers_of_numpy(tmp_path: Path) -> None:
    two = np.int64(2)
    model = model_of()
    process = ll.gaussian_process(model, (X, Y), ll.Categorical(), ll.Subset(two, seed=two), progress=False)
    ll.save(process, tmp_path / "process")
    close(ll.load(tmp_path / "process", model).latent(X).cov, process.latent(X).cov)
    low = fit(structure=ll.LowRank(two), prior=1.0, batch_size=two)
    assert ll.BNN(low, two)(X).probs.shape == low.sample_functions(X, two, seed=two)[0].shape


def test_saving_where_it_cannot_be(tmp_path: Path) -> None:
    posterior = fit()
    with pytest.raises(ll.InputError, match="is a folder"):
        ll.save(posterior, tmp_path)
    with pytest.raises(ll.InputError, match="does not exist"):
        ll.save(posterior, tmp_path / "none" / "posterior.safetensors")
    assert not list(tmp_path.iterdir())
    ll.save(posterior, tmp_path / "posterior.safetensors")
    with pytest.raises(ll.InputError, match="model is a NoneType"):
        ll.load(tmp_path / "posterior.safetensors", None)  # type: ignore[arg-type]
