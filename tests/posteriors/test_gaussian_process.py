"""Function space says what weight space says; subsets and projections say what their formulas say."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.network.inputs import take
from linlap.posteriors import FunctionPosterior, points
from tests import reference, reference_gp
from tests.cases import QUICK, likelihoods_for
from tests.checks import close, noise, rest_of, same, varied
from tests.networks.parts import mlp
from tests.truth import Truth, truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
PRIOR = 0.7
DEEP = ["mlp_1_hidden", "mlp_2_hidden", "mlp_3_hidden", "conv2d", "lstm", "linear"]
EVERY = [(name, law.name) for name in DEEP for law in likelihoods_for(truth_of(name).case.outputs)]
CHOICES = {
    "everything": lambda n: ll.Everything(),
    "subset": ll.Subset,
    "top": ll.TopM,
    "sparse": ll.Sparse,
}
outputs = pytest.mark.parametrize("outputs", ["coupled", "independent"])


def fit(truth: Truth, inducing: Any = None, outputs: Any = "coupled", prior: Any = PRIOR, **options: Any) -> Any:
    given = {"data": (truth.x, truth.y)} | options
    return ll.gaussian_process(
        truth.model(), given.pop("data"), truth.likelihood, inducing, outputs, prior, progress=False, **given
    )


def many() -> Truth:
    return truth_of("mlp_many_data", "categorical")


@cache
def fitted(kind: str, outputs: str) -> FunctionPosterior:
    return fit(many(), CHOICES[kind](5 if kind in ("subset", "top", "sparse") else 0), outputs)


def same_law(one: Any, other: Any, x: Any, tolerance: float = 1e-8) -> None:
    for joint in (False, True):
        close(one.latent(x, joint=joint).mean, other.latent(x, joint=joint).mean, tolerance)
        close(one.latent(x, joint=joint).cov, other.latent(x, joint=joint).cov, tolerance)
    close(one.latent(x, diagonal=True).cov, other.latent(x).variance, tolerance)
    close(one.log_evidence(), other.log_evidence(), tolerance)


# The same as weight space


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_every_network_equals_its_weight_space(case: Any) -> None:
    truth = truth_of(case.name)
    weights = truth.fit(ll.Full(), PRIOR)
    same_law(fit(truth), weights, truth.x)


@pytest.mark.parametrize(("name", "law"), EVERY)
@pytest.mark.parametrize("kind", CHOICES)
def test_every_likelihood_and_choice_equals_weight_space(name: str, law: str, kind: str) -> None:
    """All data as a subset, or all of them inducing, are everything."""
    truth = truth_of(name, law)
    weights = truth.fit(ll.Full(), ll.Prior(PRIOR, 0.4))
    process = fit(truth, CHOICES[kind](len(truth.f)), prior=ll.Prior(PRIOR, 0.4))
    same_law(process, weights, truth.x)
    one, other = ll.GLM(process)(truth.x), ll.GLM(weights)(truth.x)
    for quantity in ("probs", "mean", "variance"):
        found, expected = getattr(one, quantity, None), getattr(other, quantity, None)
        if isinstance(expected, Tensor) and not expected.isnan().any():
            close(found, expected)
    parts, expected_parts = ll.uncertainty(ll.GLM(process), truth.x), ll.uncertainty(ll.GLM(weights), truth.x)
    close(parts.total, expected_parts.total)
    close(parts.epistemic, expected_parts.epistemic)


@pytest.mark.parametrize("name", ["mlp_2_hidden", "conv2d", "layer_norm", "lstm", "frozen_some"])
@pytest.mark.parametrize("kind", ["scalar", "per layer", "per weight", "per weight of one"])
def test_priors(name: str, kind: str) -> None:
    truth = truth_of(name)
    precision = prior_of_kind(kind, truth)
    expected = truth.fit(ll.Full(), ll.Prior(precision))
    same_law(fit(truth, prior=ll.Prior(precision)), expected, truth.x)
    same_law(fit(truth, prior=3.0).with_prior(ll.Prior(precision)), expected, truth.x)
    same_law(fit(truth, prior=ll.Prior(precision)).with_prior(PRIOR), truth.fit(ll.Full(), PRIOR), truth.x)
    same_law(fit(truth, ll.Sparse(len(truth.f)), prior=ll.Prior(precision)), expected, truth.x)


def prior_of_kind(kind: str, truth: Truth) -> Any:
    shapes = {name: weight.shape for name, weight in truth.model().named_parameters()}
    modules = sorted({name.rpartition(".")[0] for name in truth.names})
    if kind == "per layer":
        return dict(zip(modules, varied(len(modules)).tolist(), strict=True))
    if kind == "per weight of one":
        first = truth.names[0]
        return {"": 1.3, first: varied(shapes[first].numel()).reshape(shapes[first])}
    return varied(len(truth.theta)) if kind == "per weight" else PRIOR


# As the formulas have it


@pytest.mark.parametrize("name", ["mlp_2_hidden", "mlp_many_data", "conv2d", "multihead_attention", "embedding"])
@pytest.mark.parametrize("precision", [0.7, 30.0])
def test_independent_outputs(name: str, precision: float) -> None:
    truth = truth_of(name)
    prior = truth.prior(precision)
    expected = reference_gp.independent(truth.J, truth.lam, truth.J, prior)
    process = fit(truth, outputs="independent", prior=precision)
    close(process.latent(truth.x, diagonal=True).cov, expected)
    close(process.latent(truth.x).cov, expected.diag_embed())
    close(process.latent(truth.x, joint=True).marginals().cov, expected.diag_embed())
    evidence = reference_gp.independent_evidence(truth.J, truth.lam, truth.log_likelihood, truth.theta, prior)
    close(process.log_evidence(), evidence)
    for choice in (ll.Subset(len(truth.f)), ll.TopM(len(truth.f)), ll.Sparse(len(truth.f))):
        close(fit(truth, choice, "independent", precision).latent(truth.x, diagonal=True).cov, expected)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_sparse(size: int) -> None:
    truth = many()
    process, prior = fit(truth, ll.Sparse(size)), truth.prior(PRIOR)
    J_z = jacobian_at(truth, process.points.x)
    expected = reference_gp.sparse(truth.J, truth.lam, J_z, truth.J, prior)
    n, c = truth.f.shape
    close(process.latent(truth.x, joint=True).cov, expected.view(n, c, n, c))
    alone = fit(truth, ll.Sparse(size), "independent")
    expected = reference_gp.sparse_independent(truth.J, truth.lam, J_z, truth.J, prior)
    close(alone.latent(truth.x, diagonal=True).cov, expected)


def test_sparse_at_inputs_of_ones_own() -> None:
    truth, Z = many(), noise(4, 3, seed="inducing")
    process = fit(truth, ll.Sparse(inputs=Z), prior=2.0)
    J_z = jacobian_at(truth, Z)
    expected = reference_gp.sparse(truth.J, truth.lam, J_z, truth.J, truth.prior(2.0))
    n, c = truth.f.shape
    close(process.latent(truth.x, joint=True).cov, expected.view(n, c, n, c))
    close(process.with_prior(0.3).latent(truth.x).cov, fit(truth, ll.Sparse(inputs=Z), prior=0.3).latent(truth.x).cov)


def jacobian_at(truth: Truth, x: Any) -> Tensor:
    return reference.jacobian(truth.model(), x, truth.names)[1]


@outputs
def test_subsets_scale_the_prior(outputs: str) -> None:
    truth = many()
    n = len(truth.f)
    for choice in (ll.Subset(5, seed=3), ll.TopM(5)):
        process = fit(truth, choice, outputs)
        chosen = [index for index in range(n) if (truth.x[index] == process.points.x).all(-1).any()]
        assert len(chosen) == 5
        data = (truth.x[chosen], truth.y[chosen])
        expected = fit(truth, None, outputs, PRIOR * n / 5, data=data)
        same_law(process, expected, truth.x)
        if isinstance(choice, ll.TopM):
            traces = truth.lam.diagonal(dim1=1, dim2=2).sum(-1)
            assert sorted(chosen) == sorted(traces.argsort(descending=True)[:5].tolist())


def test_the_seed_decides_the_subset() -> None:
    def chosen(choice: Any) -> Tensor:
        return fit(many(), choice).points.x

    assert torch.equal(chosen(ll.Subset(5, seed=1)), chosen(ll.Subset(5, seed=1)))
    assert not torch.equal(chosen(ll.Subset(5, seed=1)), chosen(ll.Subset(5, seed=2)))
    assert torch.equal(chosen(ll.Subset(5)), chosen(ll.Sparse(5)))


# However data and inputs come


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_no_dependence_on_batches(kind: str, outputs: str) -> None:
    truth, whole = many(), fitted(kind, outputs)
    size = 0 if kind == "everything" else 5
    same_law(fit(truth, CHOICES[kind](size), outputs, batch_size=3), whole, truth.x, 1e-10)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(truth.x, truth.y), batch_size=4)
    same_law(fit(truth, CHOICES[kind](size), outputs, data=loader), whole, truth.x, 1e-10)
    by_parts = [whole.latent(take(truth.x, start, start + 3)).cov for start in range(0, len(truth.f), 3)]
    close(torch.cat(by_parts), whole.latent(truth.x).cov, 1e-10)
    close(whole.latent(truth.x, memory=100_000).cov, whole.latent(truth.x).cov, 1e-10)


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_features_too_large_to_keep_are_made_again(kind: str, outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fitted(kind, outputs)
    assert "kept" in repr(expected)
    monkeypatch.setattr(points, "available", lambda device: 400)
    monkeypatch.setattr(points, "_TILE_ON_A_CPU", 1000)
    process = fit(many(), CHOICES[kind](0 if kind == "everything" else 5), outputs)
    assert "too large to keep" in repr(process)
    same_law(process, expected, many().x, 1e-10)


@outputs
@pytest.mark.parametrize("kind", ["everything", "sparse"])
@pytest.mark.parametrize("precision", ["scalar", "per layer", "per weight"])
def test_update_equals_a_fit_on_all(kind: str, outputs: str, precision: str) -> None:
    truth = many()
    prior = ll.Prior(prior_of_kind(precision, truth))
    choice = ll.Everything() if kind == "everything" else ll.Sparse(inputs=noise(4, 3))
    first = fit(truth, choice, outputs, prior, data=(truth.x[:6], truth.y[:6]))
    before = first.latent(truth.x).cov
    grown = first.update((truth.x[6:9], truth.y[6:9])).update((truth.x[9:], truth.y[9:]))
    expected = fit(truth, choice, outputs, prior)
    same_law(grown, expected, truth.x, 1e-9)
    assert grown.totals.count == len(truth.f)
    close(first.latent(truth.x).cov, before, 0.0)
    close(grown.with_prior(prior).latent(truth.x).cov, expected.latent(truth.x).cov, 1e-9)


def test_subsets_are_not_updated() -> None:
    with pytest.raises(ll.InputError, match="chosen from the data there were.*Sparse"):
        fitted("subset", "coupled").update((many().x, many().y))


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_another_prior_takes_no_pass(kind: str, outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process, truth = fitted(kind, outputs), many()
    expected = fit(truth, CHOICES[kind](0 if kind == "everything" else 5), outputs, 2.5).log_evidence()
    monkeypatch.setattr(ll.Network, "_run", lambda *_: pytest.fail("the network was run"))
    close(process.with_prior(2.5).log_evidence(), expected, 1e-9)


@outputs
def test_kernels_by_layer_are_made_once(outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = many()
    process = fit(truth, None, outputs, ll.Prior({"0": 1.0, "2": 2.0}))
    monkeypatch.setattr(points, "kernel", lambda *_: pytest.fail("a kernel was made again"))
    for prior in ({"0": 3.0, "2": 0.5}, 1.7):
        process.with_prior(ll.Prior(prior)).log_evidence()


def test_sparse_with_a_prior_that_is_no_multiple() -> None:
    with pytest.raises(ll.InputError, match="no multiple"):
        fitted("sparse", "coupled").with_prior(ll.Prior({"0": 1.0, "2": 2.0}))


# Evidence


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_the_evidence_has_a_derivative(kind: str, outputs: str) -> None:
    process = fitted(kind, outputs)
    log_delta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: process.with_prior(ll.Prior(t.exp())).log_evidence(), (log_delta,))


def test_the_evidence_of_a_prior_by_layer_has_weight_spaces_derivative() -> None:
    truth = many()
    full, process = truth.fit(ll.Full(), PRIOR), fit(truth)

    def gradient(posterior: Any) -> Tensor:
        delta = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
        posterior.with_prior(ll.Prior({"0": delta[0], "2": delta[1]})).log_evidence().backward()
        assert delta.grad is not None
        return delta.grad

    close(gradient(process), gradient(full))


def test_a_derivative_whatever_mode_came_first() -> None:
    delta = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    process = fitted("everything", "coupled").with_prior(ll.Prior(delta))
    with torch.inference_mode():
        process.latent(many().x)
    process.log_evidence().backward()
    assert delta.grad is not None


# Functions


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_sampled_functions(kind: str, outputs: str) -> None:
    process, x = fitted(kind, outputs).with_prior(ll.Prior(PRIOR, 0.5)), many().x[:4]
    k = 4000
    drawn = process.sample_functions(x, k, seed=1)
    law = process.latent(x, joint=True)
    centred = (drawn - law.mean).flatten(1)
    found = centred.T @ centred / k
    expected = law.cov.reshape(found.shape)
    spread = (expected.diagonal()[:, None] * expected.diagonal() + expected**2).sqrt() / k**0.5
    assert bool(((found - expected).abs() < 5 * spread + 1e-12).all())
    assert bool((centred.mean(0).abs() < 5 * (expected.diagonal() / k).sqrt() + 1e-12).all())


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_sampled_functions_are_the_same_in_every_call(kind: str, outputs: str) -> None:
    process, x = fitted(kind, outputs), many().x
    drawn = process.sample_functions(x, 3)
    close(process.sample_functions(x, 5)[:3], drawn, 1e-10)
    close(process.sample_functions(x[4:6], 3), drawn[:, 4:6], 1e-10)
    assert not torch.equal(process.sample_functions(x, 3, seed=1), drawn)


# Hard numbers


@outputs
@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_saturated_outputs(kind: str, outputs: str, dtype: torch.dtype) -> None:
    """Λ is singular to the last bit for nearly all data."""
    torch.manual_seed(0)
    model = mlp(3, 20, 4).to(dtype)
    with torch.no_grad():
        model[-1].weight *= 1e4
    x = noise(100, 3).to(dtype)
    f = model(x)
    assert (f.softmax(-1).amax(-1) == 1).float().mean() > 0.9
    choice = CHOICES[kind](0 if kind == "everything" else 20)
    process = ll.gaussian_process(model, (x, f.argmax(-1)), ll.Categorical(), choice, outputs, 1.0, progress=False)
    test = torch.cat([x, 5 * noise(50, 3, seed=1).to(dtype)])
    law = process.latent(test)
    assert torch.isfinite(law.cov).all()
    assert torch.isfinite(process.log_evidence())
    assert (law.variance >= 0).all()
    assert (process.latent(test, diagonal=True).cov >= 0).all()
    probs = ll.GLM(process)(test).probs
    assert torch.isfinite(probs).all()
    close(probs.sum(-1), torch.ones(len(test)), 1e-5)


def test_duplicated_inducing_inputs_get_jitter_that_is_said() -> None:
    truth = many()
    Z = truth.x[:3].repeat(2, 1)
    with pytest.warns(ll.LinlapWarning, match="kernel of the inducing inputs was singular; added"):
        process = fit(truth, ll.Sparse(inputs=Z))
    close(process.latent(truth.x).cov, fit(truth, ll.Sparse(inputs=truth.x[:3])).latent(truth.x).cov, 1e-6)


def test_large_factors_are_made_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linlap.posteriors.conditioning.LARGE", 8)
    truth = many()
    for kind in ("coupled", "independent"):
        same_law(fit(truth, outputs=kind), fitted("everything", kind), truth.x, 1e-10)
        same_law(fit(truth, ll.Sparse(5), kind), fitted("sparse", kind), truth.x, 1e-10)


# Manners


def test_the_model_is_untouched() -> None:
    truth = truth_of("batch_norm2d")
    model = truth.model()
    before = rest_of(model)
    process = ll.gaussian_process(model, (truth.x, truth.y), truth.likelihood, progress=False)
    process.latent(truth.x)
    process.sample_functions(truth.x, 2)
    assert same(rest_of(model), before)


def test_some_weights_alone() -> None:
    truth = many()
    same_law(fit(truth, parameters="last"), truth.fit(ll.Full(), PRIOR, parameters="last"), truth.x)


@outputs
@pytest.mark.parametrize("kind", CHOICES)
def test_save_and_load(kind: str, outputs: str, tmp_path: Any) -> None:
    process, truth = fitted(kind, outputs), many()
    ll.save(process, tmp_path / "process.safetensors")
    again = ll.load(tmp_path / "process.safetensors", truth.model())
    assert isinstance(again, FunctionPosterior)
    same_law(again, process, truth.x, 1e-12)
    assert again.totals == process.totals
    close(again.with_prior(3.0).latent(truth.x).cov, process.with_prior(3.0).latent(truth.x).cov, 1e-10)
    more = (truth.x[:4] + 0.1, truth.y[:4])
    if kind in ("everything", "sparse"):
        same_law(again.update(more), process.update(more), truth.x, 1e-10)


@pytest.mark.parametrize("name", ["tuple", "dict_keywords", "hugging_face"])
def test_inputs_of_other_forms(name: str, tmp_path: Any) -> None:
    truth = truth_of(name)
    process = fit(truth, ll.Sparse(2))
    ll.save(process, tmp_path / "process.safetensors")
    close(ll.load(tmp_path / "process.safetensors", truth.model()).latent(truth.x).cov, process.latent(truth.x).cov)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("pass a positive number of inputs", lambda t: fit(t, ll.Subset(0))),
        ("pass a positive number of inputs", lambda t: fit(t, ll.TopM(2.5))),
        ("pass a positive number of inputs", lambda t: fit(t, ll.Sparse(True))),
        ("asks for 15 inputs, but there are 14", lambda t: fit(t, ll.Subset(15))),
        ("asks for 15 inputs, but there are 14", lambda t: fit(t, ll.Sparse(15))),
        ("Sparse needs a number", lambda t: fit(t, ll.Sparse())),
        ("Sparse needs a number", lambda t: fit(t, ll.Sparse(3, inputs=t.x))),
        ("inducing is 5; pass", lambda t: fit(t, 5)),
        ("inducing is .*Subset.*; pass", lambda t: fit(t, ll.Subset)),
        ("outputs='both'", lambda t: fit(t, outputs="both")),
        ("no inputs", lambda t: ll.Sparse(inputs=t.x[:0])),
        ("NaN or infinite", lambda t: ll.Sparse(inputs=t.x * float("nan"))),
        (r"cannot take inputs of shape \[n, 7\]", lambda t: fit(t, ll.Sparse(inputs=noise(4, 7)))),
        ("empty", lambda t: fit(t, data=(t.x[:0], t.y[:0]))),
        ("classes are 0 to 2", lambda t: fit(t, data=(t.x, t.y + 3))),
        ("positive and finite", lambda t: fit(t, prior=-1.0)),
        ("likelihood is 'classification'", lambda t: ll.gaussian_process(t.model(), (t.x, t.y), "classification")),
        ("exclude each other", lambda t: fitted("sparse", "coupled").latent(t.x, diagonal=True, joint=True)),
        ("pass a positive number of samples", lambda t: fitted("sparse", "coupled").sample_functions(t.x, 0)),
        ("no sample; .*a process to ll.GLM", lambda t: ll.BNN(fitted("sparse", "coupled"))),
        (r"cannot take inputs of shape \[n, 2\]", lambda t: fitted("top", "coupled").latent(t.x[:, :2])),
    ],
)
def test_bad_input(words: str, given: Any) -> None:
    with pytest.raises(ll.InputError, match=words):
        given(many())


def test_a_kernel_that_memory_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linlap.network.memory.available", lambda device: 10_000)
    with pytest.raises(ll.MemoryBudgetError, match=r"kernel of 1 × 28 × 28.*needs about .* has 9.77 KiB free.*Subset"):
        fit(many())


def test_the_map_of_a_process() -> None:
    process, truth = fitted("everything", "independent"), many()
    close(ll.MAP(process)(truth.x).probs, truth.f.softmax(-1))
