"""What a process at its mode does: other priors, more data, files, however data come; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.posteriors import FunctionPosterior
from linlap.refine.gp_mode import GpMode
from tests import reference, reference_gp
from tests.checks import close, noise, rest_of, same
from tests.gp_modes import CHOICES, PRIOR, Model, at_mode, many, model_of, process, refined, same_law
from tests.networks.parts import mlp
from tests.truth import Truth, truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
choices = pytest.mark.parametrize("kind", CHOICES)
outputs = pytest.mark.parametrize("outputs", ["coupled", "independent"])


# What a refined process does


@outputs
@choices
def test_a_mode_that_is_reached_is_left_in_place(kind: str, outputs: str) -> None:
    truth = many()
    once = refined(process(truth, CHOICES[kind](5), outputs), truth)
    twice = refined(once, truth)
    assert twice.refinement.steps == 0
    assert twice.refinement.converged
    same_law(twice, once, truth.x, 1e-9)


def test_a_network_at_the_mode_does_not_move() -> None:
    truth = truth_of("linear", "categorical")
    model, law = truth.model(), model_of(truth)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(law.mode(), model.parameters())
    for outputs in ("coupled", "independent"):
        before = ll.gaussian_process(model, (truth.x, truth.y), truth.likelihood, None, outputs, PRIOR, progress=False)
        after = refined(before, truth)
        assert after.refinement.steps == (0 if outputs == "coupled" else after.refinement.steps)
        if outputs == "coupled":
            same_law(after, before, truth.x)


@outputs
@choices
def test_another_prior_takes_no_pass(kind: str, outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = many()
    found = refined(process(truth, CHOICES[kind](5), outputs), truth)
    before = found.latent(truth.x).mean
    with monkeypatch.context() as patch:
        patch.setattr(ll.Network, "_run", lambda *_: pytest.fail("the network was run"))
        changed = found.with_prior(2.5)
        changed.log_evidence()
    close(changed.latent(truth.x).mean, before, 0.0)
    again = refined(changed, truth)
    expected = refined(process(truth, CHOICES[kind](5), outputs, 2.5), truth)
    same_law(again, expected, truth.x, 1e-7)


def test_the_covariance_under_another_prior_is_laplaces_at_the_same_mean() -> None:
    truth, model = many(), model_of(many())
    mean = model.mode()
    other = refined(process(truth, prior=ll.Prior({"0": PRIOR, "2": PRIOR})), truth)
    for prior in (2.5, {"0": 0.3, "2": 4.0}):
        changed = Model(truth, truth.J, truth.theta, truth.prior(prior))
        at_mode(other.with_prior(ll.Prior(prior)), changed, mean, "coupled")


@outputs
@choices
def test_the_evidence_has_a_derivative(kind: str, outputs: str) -> None:
    found = refined(process(many(), CHOICES[kind](4), outputs), many())
    log_delta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: found.with_prior(ll.Prior(t.exp())).log_evidence(), (log_delta,))


def test_a_prior_with_a_gradient() -> None:
    truth, delta = many(), torch.tensor(PRIOR, dtype=torch.float64, requires_grad=True)
    for choice in (ll.Everything(), ll.Sparse(4)):
        found = refined(process(truth, choice, prior=ll.Prior(delta)), truth)
        assert not found.shift.requires_grad
        same_law(found, refined(process(truth, choice), truth), truth.x)
        delta.grad = None
        found.log_evidence().backward()
        assert delta.grad is not None


@outputs
@choices
def test_sampled_functions_have_the_refined_mean(kind: str, outputs: str) -> None:
    found, x = refined(process(many(), CHOICES[kind](5), outputs), many()), many().x[:4]
    k = 4000
    law, drawn = found.latent(x), found.sample_functions(x, k, seed=1)
    assert bool(((drawn.mean(0) - law.mean).abs() < 5 * (law.variance / k).sqrt() + 1e-12).all())
    assert bool(((drawn.var(0) - law.variance).abs() < 6 * law.variance * (2 / k) ** 0.5 + 1e-12).all())


@outputs
@pytest.mark.parametrize("kind", ["everything", "sparse"])
def test_more_data_are_taken_at_the_same_mean(kind: str, outputs: str) -> None:
    truth = many()
    choice = ll.Everything() if kind == "everything" else ll.Sparse(inputs=noise(4, 3))
    first = (truth.x[:8], truth.y[:8])
    before = GpMode().refine(process(truth, choice, outputs, data=first), first, progress=False)
    found = before.update((truth.x[8:], truth.y[8:]))
    model = model_of(truth, outputs)
    mean = before.shift.flatten() + model.theta
    close(found.latent(truth.x).mean, model.f(mean))
    lam, prior, (n, c) = model.lam(mean), truth.prior(PRIOR), truth.f.shape
    J_z = reference.jacobian(truth.model(), found.points.x, truth.names)[1]
    if kind == "everything":
        at_mode(found, model, mean, outputs)
    elif outputs == "coupled":
        expected = reference_gp.sparse(truth.J, lam, J_z, truth.J, prior)
        close(found.latent(truth.x, joint=True).cov, expected.view(n, c, n, c))
    else:
        expected = reference_gp.sparse_independent(truth.J, lam, J_z, truth.J, prior)
        close(found.latent(truth.x, diagonal=True).cov, expected)
    again = refined(found, truth)
    same_law(again, refined(process(truth, choice, outputs), truth), truth.x, 1e-7)


@outputs
@choices
def test_save_and_load(kind: str, outputs: str, tmp_path: Any) -> None:
    truth = many()
    found = refined(process(truth, CHOICES[kind](5), outputs), truth)
    ll.save(found, tmp_path / "process.safetensors")
    again: Any = ll.load(tmp_path / "process.safetensors", truth.model())
    same_law(again, found, truth.x, 1e-12)
    assert repr(again.refinement) == repr(found.refinement)
    assert "GpMode" in repr(again)
    same_law(again.with_prior(3.0), found.with_prior(3.0), truth.x, 1e-10)
    if kind in ("everything", "sparse"):
        more = (truth.x[:4] + 0.1, truth.y[:4])
        same_law(again.update(more), found.update(more), truth.x, 1e-10)


def test_a_process_that_was_loaded_is_refined(tmp_path: Any) -> None:
    truth = many()
    for choice in (ll.Everything(), ll.Sparse(5)):
        before = process(truth, choice, "independent")
        ll.save(before, tmp_path / "process.safetensors")
        loaded = ll.load(tmp_path / "process.safetensors", truth.model())
        same_law(refined(loaded, truth), refined(before, truth), truth.x, 1e-9)


# However data come


@outputs
@choices
def test_no_dependence_on_batches(kind: str, outputs: str) -> None:
    truth = many()
    before = process(truth, CHOICES[kind](5), outputs)
    whole = refined(before, truth)
    same_law(refined(before, truth, batch_size=3), whole, truth.x, 1e-9)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(truth.x, truth.y), batch_size=4)
    same_law(GpMode().refine(before, loader, progress=False), whole, truth.x, 1e-9)


@pytest.mark.parametrize("name", ["tuple", "dict_keywords", "batch_norm2d", "embedding", "multihead_attention"])
@pytest.mark.parametrize("kind", ["everything", "sparse"])
def test_inputs_and_layers_of_other_kinds(name: str, kind: str) -> None:
    truth = truth_of(name)
    found = refined(process(truth, CHOICES[kind](len(truth.f))), truth)
    model = model_of(truth)
    if truth.law.name != "heteroscedastic":
        at_mode(found, model, model.mode(), "coupled", 1e-6 if kind == "sparse" else 1e-8)


@outputs
@choices
def test_features_too_large_to_keep(kind: str, outputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = many()
    expected = refined(process(truth, CHOICES[kind](5), outputs), truth)
    monkeypatch.setattr("linlap.posteriors.points.available", lambda device: 400)
    monkeypatch.setattr("linlap.posteriors.points._TILE_ON_A_CPU", 1000)
    same_law(refined(process(truth, CHOICES[kind](5), outputs), truth), expected, truth.x, 1e-9)


def test_large_factors_are_made_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = many()
    expected = {kind: refined(process(truth, CHOICES[kind](5)), truth) for kind in ("everything", "sparse")}
    monkeypatch.setattr("linlap.posteriors.conditioning.LARGE", 8)
    for kind, whole in expected.items():
        same_law(refined(process(truth, CHOICES[kind](5)), truth), whole, truth.x, 1e-9)


@outputs
@choices
def test_float32(kind: str, outputs: str) -> None:
    truth = many()
    expected = refined(process(truth, CHOICES[kind](5), outputs), truth)
    data = (truth.x.float(), truth.y)
    before = ll.gaussian_process(
        truth.model().float(), data, truth.likelihood, CHOICES[kind](5), outputs, PRIOR, progress=False
    )
    found = GpMode().refine(before, data, progress=False)
    assert found.refinement.converged
    assert found.latent(data[0]).mean.dtype == torch.float32
    close(found.latent(data[0]).mean, expected.latent(truth.x).mean, 1e-4)
    close(found.latent(data[0]).cov, expected.latent(truth.x).cov, 1e-3)
    assert GpMode().refine(found, data, progress=False).refinement.steps <= 1


def test_the_model_and_the_process_are_untouched() -> None:
    truth = truth_of("batch_norm2d")
    model = truth.model()
    state = rest_of(model)
    for choice in (None, ll.Sparse(2)):
        before = ll.gaussian_process(model, (truth.x, truth.y), truth.likelihood, choice, progress=False)
        law = before.latent(truth.x)
        refined(before, truth)
        assert same(rest_of(model), state)
        assert torch.equal(before.latent(truth.x).mean, law.mean)
        close(before.latent(truth.x).cov, law.cov, 0.0)


# Hard numbers


@outputs
@choices
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_saturated_outputs(kind: str, outputs: str, right: bool, dtype: torch.dtype) -> None:
    """Λ is singular to the last bit where the search begins; where labels are wrong, r is as large as it can be."""
    torch.manual_seed(0)
    model = mlp(3, 20, 4).to(dtype)
    with torch.no_grad():
        model[-1].weight *= 1e3
    x = noise(60, 3).to(dtype)
    y = model(x).argmax(-1) if right else (model(x).argmax(-1) + 1) % 4
    choice = CHOICES[kind](0 if kind == "everything" else 20)
    before = ll.gaussian_process(model, (x, y), ll.Categorical(), choice, outputs, 1.0, progress=False)
    found = GpMode().refine(before, (x, y), progress=False)
    law = found.latent(torch.cat([x, 5 * noise(20, 3, seed=1).to(dtype)]))
    assert torch.isfinite(law.mean).all()
    assert torch.isfinite(law.cov).all()
    assert (law.variance >= 0).all()
    assert torch.isfinite(found.log_evidence())
    objective = found.refinement.objective
    assert bool((objective.diff() >= -1e-9 * objective.abs().max()).all())
    if dtype == torch.float64:
        assert found.refinement.converged


def test_counts_that_begin_far_from_their_rates() -> None:
    """Where a full step would overflow."""
    truth = many("poisson")
    y = 1e4 * torch.ones_like(truth.f)
    far = Truth(truth.case, truth.x, y, truth.names, truth.f, truth.J, truth.lam, truth.law)
    for choice in (None, ll.Sparse(len(y))):
        found = refined(process(far, choice), far)
        assert found.refinement.converged
        close(found.shift.flatten() + truth.theta, model_of(far).mode(), 1e-6)


# What cannot be


def test_too_few_steps_are_said() -> None:
    with pytest.warns(ll.LinlapWarning, match=r"after 1 steps .* not yet the mode. Pass more steps"):
        found = refined(process(many()), many(), steps=1)
    assert not found.refinement.converged
    assert "not converged" in repr(found)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("built on 14 data and these are 13", lambda t: of_other(t, "everything", t.x[:13], t.y[:13])),
        ("built on 14 data and these are 13", lambda t: of_other(t, "subset", t.x[:13], t.y[:13])),
        ("built on 14 data and these are 13", lambda t: of_other(t, "sparse", t.x[:13], t.y[:13])),
        ("asks for 5 inputs, but there are 3", lambda t: of_other(t, "top", t.x[:3], t.y[:3])),
        ("not those the process was built on.*same order", lambda t: of_other(t, "everything", t.x.flip(0), t.y)),
        ("not those the process was built on.*same order", lambda t: of_other(t, "top", t.x + 0.1, t.y)),
        ("log p.* of these data is", lambda t: of_other(t, "everything", t.x, (t.y + 1) % 3)),
        ("log p.* of these data is", lambda t: of_other(t, "sparse", t.x, (t.y + 1) % 3)),
        (r"cannot take inputs of shape \[n, 2\]", lambda t: of_other(t, "everything", t.x[:, :2], t.y)),
        (r"cannot take inputs of shape \[n, 2\]", lambda t: of_other(t, "sparse", t.x[:, :2], t.y)),
        ("classes are 0 to 2", lambda t: of_other(t, "sparse", t.x, t.y + 3)),
        ("empty", lambda t: of_other(t, "sparse", t.x[:0], t.y[:0])),
        ("posterior over weights; use ll.GlmMap", lambda t: refined(t.fit(ll.Full()), t)),
        ("a str is no Gaussian process", lambda t: refined("process", t)),
        ("steps=0; pass", lambda t: GpMode(steps=0)),
        ("steps=2.5; pass", lambda t: GpMode(steps=2.5)),  # type: ignore[arg-type]
        ("tolerance=0; pass", lambda t: GpMode(tolerance=0)),
        ("tolerance='tight'; pass", lambda t: GpMode(tolerance="tight")),  # type: ignore[arg-type]
        ("batch_size=0; pass", lambda t: refined(process(t), t, batch_size=0)),
    ],
)
def test_bad_input(words: str, given: Any) -> None:
    with pytest.raises(ll.InputError, match=words):
        given(many())


def of_other(truth: Truth, kind: str, x: Tensor, y: Tensor) -> FunctionPosterior:
    """Refined with data other than those it was built on."""
    return GpMode().refine(process(truth, CHOICES[kind](5)), (x, y), progress=False)


def test_a_kernel_that_memory_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    before = process(many())
    monkeypatch.setattr("linlap.network.memory.available", lambda device: 10_000)
    with pytest.raises(ll.MemoryBudgetError, match=r"mode with a kernel of 1 × 42 × 42.*has 9.77 KiB free.*Subset"):
        refined(before, many())
