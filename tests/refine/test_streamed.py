"""Refinement on minibatches, without stored Jacobians."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import linlap as ll
from linlap.data import as_batches
from linlap.refine import climb
from linlap.refine.minibatches import Minibatches
from linlap.refine.streamed import divergence
from linlap.refine.streamed_mode import gradient_norm, log_joint
from linlap.seeds import generator_for
from tests import reference, reference_refine
from tests.checks import close, noise, rest_of, same
from tests.networks.parts import mlp
from tests.truth import Truth, truth_of

STRUCTURES = {"diagonal": ll.Diagonal(), "kron": ll.Kron()}
kinds = pytest.mark.parametrize("kind", STRUCTURES)


def data_of(truth: Truth) -> Any:
    return truth.x, truth.y


def dense(truth: Truth, prior: Any) -> reference_refine.Model:
    given = (truth.law.oracle, truth.options, truth.J, truth.f, truth.y)
    return reference_refine.Model(*given, truth.theta, truth.prior(prior))


def problem(seed: int = 0, n: int = 60) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Three classes that a small network, hardly trained, does not know yet."""
    x = noise(n, 3, seed=seed)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(3, 6, 3).double(), (x, y)


def fitted(structure: Any, prior: float = 0.5) -> tuple[Any, tuple[Tensor, Tensor]]:
    model, data = problem()
    return ll.laplace(model, data, ll.Categorical(), structure, prior, progress=False), data


def test_a_batch_of_all_data_steps_as_stored_jacobians_do() -> None:
    """With exact seeds and one batch: precision and mean are those of the paper's update at the same sample."""
    truth = truth_of("mlp_many_data", "categorical")
    posterior = truth.fit(ll.Diagonal(), 0.8)
    method = ll.NaturalGradient("diagonal", steps=1, rate=0.3, batch_size=len(truth.y), seeds=None, seed=5)
    refined = ll.refine(posterior, data_of(truth), method, progress=False)
    drawn = torch.randn(len(truth.theta), generator=generator_for(5, 0), dtype=torch.float64)

    def sampler(step: int, precision: Tensor, blocks: Tensor) -> Tensor:
        return (drawn * precision.diagonal().rsqrt()).unsqueeze(0)

    (expected,) = reference_refine.natural_gradient(dense(truth, 0.8), 1, 0.3, sampler, diagonal=True)
    close(refined.mean, expected.mean)
    close(refined.precision.dense(), expected.precision)
    assert refined.refinement is not None
    assert torch.isfinite(refined.refinement.objective).all()


def test_kron_blends_what_its_factors_say() -> None:
    """One step with all data: A stays, G is the average of Laplace's and that at the sample."""
    truth = truth_of("mlp_many_data", "categorical")
    posterior = truth.fit(ll.Kron(), 0.8)
    method = ll.NaturalGradient("kron", steps=1, rate=0.25, batch_size=len(truth.y), seeds=None)
    refined = ll.refine(posterior, data_of(truth), method, progress=False)
    drawn = torch.randn(len(truth.theta), generator=generator_for(0, 0), dtype=torch.float64)
    model = dense(truth, 0.8)
    f = model.outputs(truth.theta + posterior.precision.inverse_sqrt(drawn))
    before = reference.kron_ggn(truth.model(), truth.x, truth.names, truth.lam)
    after = reference.kron_ggn(truth.model(), truth.x, truth.names, reference.lam(truth.law.oracle, f, **truth.options))
    expected = 0.75 * before + 0.25 * after + 0.8 * torch.eye(len(truth.theta), dtype=torch.float64)
    close(refined.precision.dense(), expected)
    residual = reference.residual(truth.law.oracle, truth.y, f, **truth.options)
    gradient = torch.einsum("ncp,nc->p", truth.J, residual) - 0.8 * truth.theta
    close(refined.mean, truth.theta + 0.25 * torch.linalg.solve(expected, gradient))


@kinds
def test_parts_of_a_batch_add_up(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, data = fitted(STRUCTURES[kind])
    method = ll.NaturalGradient(kind, steps=4, rate=0.1, batch_size=20, seeds=None)
    whole = ll.refine(posterior, data, method, progress=False)
    monkeypatch.setattr(type(posterior.network), "batch_for", lambda self, x, **options: 7)
    parts = ll.refine(posterior, data, method, progress=False)
    close(parts.mean, whole.mean)
    close(parts.precision.dense(), whole.precision.dense())


@kinds
def test_the_bound_rises_and_the_model_stays(kind: Any) -> None:
    posterior, data = fitted(STRUCTURES[kind])
    before = rest_of(posterior.network.model)
    method = ll.NaturalGradient(kind, steps=150, rate=0.05, batch_size=20)
    refined = ll.refine(posterior, data, method, progress=False)
    record = refined.refinement
    assert record is not None
    assert len(record.objective) == record.steps == 150
    assert record.objective[-30:].mean() > record.objective[:10].mean()
    assert log_joint(refined) > log_joint(posterior)
    assert same(before, rest_of(posterior.network.model))
    assert ll.metrics.nll(ll.GLM(refined)(data[0]), data[1]) < ll.metrics.nll(ll.GLM(posterior)(data[0]), data[1])


@kinds
def test_mode_by_minibatches(kind: Any) -> None:
    """Near the exact one, from a preconditioner that is only roughly right."""
    posterior, data = fitted(STRUCTURES[kind])
    exact = ll.refine(posterior, data, ll.GlmMap(), progress=False)
    rough = ll.refine(posterior, data, ll.GlmMap(batch_size=15, steps=1500, rate=0.2), progress=False)
    assert log_joint(rough) > log_joint(posterior)
    close(rough.latent(data[0]).mean, exact.latent(data[0]).mean, 0.1)
    assert rough.refinement is not None
    assert rough.refinement.gradient_norm is not None
    batches = as_batches(data, 60, torch.device("cpu"))
    close(torch.tensor(rough.refinement.gradient_norm), torch.tensor(gradient_norm(rough, batches, False)), 1e-6)
    assert rough.refinement.gradient_norm < 0.2 * gradient_norm(posterior, batches, False)
    assert exact.refinement is not None
    assert not rough.refinement.converged


def test_no_worse_than_before() -> None:
    """At the mode already, where steps on minibatches only lead away: the mean stays, and a warning says so."""
    posterior, data = fitted(ll.Full())
    exact = ll.refine(posterior, data, ll.GlmMap(), progress=False)
    with pytest.warns(ll.LinlapWarning, match="did not raise"):
        again = ll.refine(exact, data, ll.GlmMap(batch_size=10, steps=3), progress=False)
    close(again.mean, exact.mean, 0.0)


@pytest.mark.parametrize(
    "method", [ll.NaturalGradient("kron", steps=12, rate=0.1, batch_size=25), ll.GlmMap(batch_size=25, steps=12)]
)
def test_broken_off_and_taken_up_again(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers to the last bit as in one go."""
    posterior, data = fitted(ll.Kron())
    whole = ll.refine(posterior, data, method, progress=False)
    monkeypatch.setattr(climb, "_SECONDS_BETWEEN", 0.0)
    loader, seen = Minibatches.since, 0

    def breaks(self: Any, step: int) -> Any:
        for batch in loader(self, step):
            nonlocal seen
            seen += 1
            if seen == 6:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(Minibatches, "since", breaks)
    kept = replace(method, checkpoint=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        ll.refine(posterior, data, kept, progress=False)
    resumed = ll.refine(posterior, data, kept, progress=False)
    assert seen < 6 + 12 + 1
    close(resumed.mean, whole.mean, 0.0)
    close(resumed.precision.dense(), whole.precision.dense(), 0.0)
    assert resumed.refinement is not None
    assert whole.refinement is not None
    close(resumed.refinement.objective, whole.refinement.objective, 0.0)
    with pytest.raises(ll.InputError, match="another run"):
        ll.refine(posterior.with_prior(3.0), data, kept, progress=False)
    with pytest.raises(ll.InputError, match="another run"):
        ll.refine(posterior, data, replace(kept, seed=9), progress=False)
    (tmp_path / "run").write_bytes(b"nonsense")
    with pytest.raises(ll.InputError, match="no checkpoint"):
        ll.refine(posterior, data, kept, progress=False)


def test_divergence() -> None:
    posterior, _ = fitted(ll.Kron())
    d = torch.linspace(0.5, 2, posterior.network.size, dtype=torch.float64)
    operator = posterior.precision
    q = torch.distributions.MultivariateNormal(posterior.mean, precision_matrix=operator.dense())
    p = torch.distributions.MultivariateNormal(torch.zeros_like(d), precision_matrix=d.diag())
    close(divergence(operator, d, posterior.mean), torch.distributions.kl_divergence(q, p))


def test_minibatches() -> None:
    """Each pass has all data once, in another order; from any step on the order is the same."""
    x, y = torch.arange(10.0).unsqueeze(1), torch.arange(10)
    device = torch.device("cpu")
    for data in ((x, y), TensorDataset(x, y)):
        source = Minibatches(data, 4, device, seed=1)
        batches = [batch for batch, _ in zip(source.since(0), range(9), strict=False)]
        passes = [torch.cat([y for _, y in batches[start : start + 3]]) for start in (0, 3, 6)]
        assert all(sorted(part.tolist()) == list(range(10)) for part in passes)
        assert not torch.equal(passes[0], passes[1])
        for (_, one), (_, other) in zip(source.since(4), batches[4:], strict=False):
            assert torch.equal(one, other)
        assert all(torch.equal(x[:, 0].long(), y) for x, y in batches)
    fixed = Minibatches(DataLoader(TensorDataset(x, y), batch_size=4), 2, device, seed=1)
    assert [y.tolist() for (_, y), _ in zip(fixed.since(2), range(2), strict=False)] == [[8, 9], [0, 1, 2, 3]]
