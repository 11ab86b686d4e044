"""What choosing by the evidence promises: nothing seen twice, nothing changed, and said how it went."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import linlap as ll
from linlap.network import Network
from tests.cases import STRUCTURES
from tests.checks import close, noise
from tests.structures import StructureCase
from tests.truth import truth_of

structures = pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)


def fitted(structure: Any = None, law: str = "gaussian", prior: Any = 1.0) -> Any:
    return truth_of("mlp_many_data", law).fit(structure or ll.Full(), prior)


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("this was not to be called again")


# Of low rank each prior by layer has a small decomposition of its own.
@pytest.mark.parametrize(
    ("case", "over"),
    [(case, "scalar") for case in STRUCTURES]
    + [(case, "layer") for case in STRUCTURES if not isinstance(case.structure, ll.LowRank)],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("noise", [None, "scalar"])
def test_no_pass_over_data_and_no_decomposition_made_twice(
    case: StructureCase, over: Any, noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = truth_of("mlp_many_data", "gaussian")
    posterior: Any = truth.fit(case.structure, 1.0).prepare()
    for name in ("linearize", "outputs", "jvp", "vjp"):
        monkeypatch.setattr(Network, name, forbidden)
    monkeypatch.setattr(torch.linalg, "eigh", forbidden)
    monkeypatch.setattr(torch.linalg, "eigvalsh", forbidden)
    found: Any = ll.select_prior(posterior, ll.Evidence(over, noise))
    found.log_evidence()
    if over == "scalar" or isinstance(case.structure, ll.Kron | ll.Diagonal):
        found.prepare()


@pytest.mark.parametrize("method", [ll.Evidence(), ll.Evidence("layer", "scalar")])
def test_the_posterior_passed_in_stays_and_so_do_temperatures(method: ll.Evidence) -> None:
    posterior = fitted(prior=ll.Prior(2.0, 0.3))
    before = posterior.log_evidence(), posterior.precision.dense()
    found: Any = ll.select_prior(posterior, method)
    assert found.prior.temperature == 0.3
    close(posterior.log_evidence(), before[0], 0.0)
    close(posterior.precision.dense(), before[1], 0.0)
    cool: Any = ll.select_prior(fitted(prior=2.0), method)
    close(found.log_evidence(), cool.log_evidence(), 1e-12)


@structures
def test_where_it_starts_does_not_matter(case: StructureCase) -> None:
    ends = [ll.Evidence("layer").maximise(fitted(case.structure, prior=d)).log_evidence[-1] for d in (1e-3, 1.0, 1e3)]
    assert ends == pytest.approx([ends[0]] * 3, rel=1e-9)


def test_a_refined_posterior_keeps_its_mean() -> None:
    truth = truth_of("mlp_many_data", "categorical")
    refined: Any = ll.refine(truth.fit(ll.Full(), 1.0), (truth.x, truth.y), ll.GlmMap(), progress=False)
    found: Any = ll.select_prior(refined, ll.Evidence())
    close(found.mean, refined.mean, 0.0)
    δ, here = float(found.prior.precision), float(found.log_evidence())
    assert all(float(refined.with_prior(δ * factor).log_evidence()) < here for factor in (0.9, 1.1))
    assert here > float(refined.log_evidence())


def test_the_evidence_stays_differentiable() -> None:
    found: Any = ll.select_prior(fitted(), ll.Evidence())
    u = torch.tensor(float(found.prior.precision), dtype=torch.float64).log().requires_grad_()
    found.with_prior(ll.Prior(u.exp())).log_evidence().backward()
    assert u.grad is not None
    assert abs(float(u.grad)) < 1e-6


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("structure", [ll.Full(), ll.Kron(), ll.LowRank(4)])
def test_in_every_mode(mode: Any, structure: Any) -> None:
    expected = ll.Evidence("layer", "scalar").maximise(fitted(structure)).log_evidence[-1]
    with mode():
        found = ll.Evidence("layer", "scalar").maximise(fitted(structure))
    assert found.log_evidence[-1] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("structure", [ll.Full(), ll.Kron(), ll.Diagonal()])
def test_float32_models(structure: Any) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    data = (truth.x.float(), truth.y)
    posterior = ll.laplace(truth.model().float(), data, truth.likelihood, structure, 1.0, progress=False)
    found: Any = ll.select_prior(posterior, ll.Evidence())
    exact: Any = ll.select_prior(truth.fit(structure, 1.0), ll.Evidence())
    assert found.log_evidence() == pytest.approx(float(exact.log_evidence()), rel=1e-5)
    assert found.latent(data[0]).cov.dtype == torch.float32


def test_convergence_is_said() -> None:
    found = ll.Evidence("layer").maximise(fitted())
    assert found.converged
    assert found.gradient_norm[-1] <= 1e-6
    assert "converged" in repr(found)
    with pytest.warns(ll.LinlapWarning, match="was not reached: after 1 steps"):
        short = ll.Evidence("layer", iterations=1).maximise(fitted())
    assert not short.converged
    assert "not converged" in repr(short)


def test_bounds_are_kept_and_said() -> None:
    with pytest.warns(ll.LinlapWarning, match="the precision of all weights, at 50"):
        found = ll.Evidence(bounds=(50.0, 100.0)).maximise(fitted())
    assert float(found.posterior.prior.precision) == pytest.approx(50.0)
    with pytest.warns(ll.LinlapWarning, match="the noise, at 5"):
        wide = ll.Evidence(noise="scalar", noise_bounds=(5.0, 9.0)).maximise(fitted())
    assert wide.posterior.likelihood.noise == pytest.approx(5.0)


# Where the data say nothing of some weights


def network(dead: bool = False, zero: bool = False) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for i, weight in enumerate(model.parameters()):
            weight.copy_(noise(*weight.shape, seed=i))
        if dead:
            model[0].bias[0] = -100.0
        if zero:
            model[2].bias.zero_()
            model[0].weight[1].zero_()
    return model


@pytest.mark.parametrize("over", ["scalar", "layer", "weight"])
@pytest.mark.parametrize("structure", [ll.Full(), ll.Kron(), ll.Diagonal(), ll.LowRank(3)])
@pytest.mark.parametrize("kind", ["dead", "zero"])
@pytest.mark.filterwarnings("ignore:the evidence grows beyond the bounds")
def test_dead_units_and_zero_weights(over: Any, structure: Any, kind: str) -> None:
    x = noise(20, 2, seed="x")
    data = (x, x[:, :1].sin())
    posterior = ll.laplace(network(**{kind: True}), data, ll.Gaussian(0.5), structure, 1.0, progress=False)
    found = ll.Evidence(over).maximise(posterior)
    assert found.converged
    assert torch.isfinite(found.posterior.latent(x).cov).all()
    if over == "weight" and isinstance(structure, ll.Diagonal):
        precision = found.posterior.network.named(found.posterior.prior.precision)
        if kind == "dead":  # such a weight's own penalty is all that is left of it
            assert float(precision["0.bias"][0]) == pytest.approx(1e-6)
        else:  # and of one that is zero nothing but what the data leave of its variance
            assert float(precision["2.bias"]) == pytest.approx(1e6)


def test_no_curvature_at_all() -> None:
    """The data are of no consequence to the weights: the smaller their penalty, the better."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    x = noise(10, 2, seed="x")
    posterior = ll.laplace(model, (x, x[:, :1]), ll.Gaussian(1.0), ll.Diagonal(), 1.0, progress=False)
    with pytest.warns(ll.LinlapWarning, match="the precision of all weights, at 1e-06"):
        found: Any = ll.select_prior(posterior, ll.Evidence())
    assert float(found.prior.precision) == pytest.approx(1e-6)


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"over": "neuron"}, "over='neuron'; pass 'scalar'"),
        ({"noise": "both"}, "noise='both'; pass None"),
        ({"noise": "output"}, "which takes a pass over the data of the fit"),
        ({"data": (1, 2)}, "data are of no use without noise='output'"),
        ({"bounds": (1.0, 0.1)}, "the smaller first"),
        ({"bounds": 3.0}, "pass two positive numbers"),
        ({"noise_bounds": (0.0, 1.0)}, "noise_bounds=(0.0, 1.0)"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"iterations": 0}, "iterations=0"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ll.InputError) as raised:
        ll.Evidence(**options)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("structure", "law", "options", "words"),
    [
        (ll.Full(), "categorical", {"noise": "scalar"}, "which has no noise to choose"),
        (ll.LowRank(3), "gaussian", {"noise": "output"}, "whose parts by output do not add up"),
        (ll.Kron(corrected=True), "gaussian", {"noise": "output"}, "whose parts by output do not add up"),
        (ll.Kron(), "gaussian", {"noise": "output", "over": "weight"}, "turn with the noise"),
    ],
)
def test_bad_combinations(structure: Any, law: str, options: dict[str, Any], words: str) -> None:
    truth = truth_of("mlp_many_data", "gaussian")
    if options.get("noise") == "output":
        options = options | {"data": (truth.x, truth.y)}
    with pytest.raises(ll.InputError, match=words):
        ll.select_prior(fitted(structure, law), ll.Evidence(**options))


def test_other_data_than_the_fits() -> None:
    truth = truth_of("mlp_many_data", "gaussian")
    for x, y in ((truth.x[:5], truth.y[:5]), (truth.x, truth.y + 1)):
        with pytest.raises(ll.InputError, match="Pass the data of the fit"):
            ll.select_prior(fitted(), ll.Evidence(noise="output", data=(x, y)))


def test_bad_processes() -> None:
    truth = truth_of("mlp_many_data", "gaussian")
    data = (truth.x, truth.y)
    sparse = ll.gaussian_process(truth.model(), data, truth.likelihood, ll.Sparse(5), progress=False)
    with pytest.raises(ll.InputError, match="only multiples of that can be compared"):
        ll.select_prior(sparse, ll.Evidence("layer"))
    with pytest.raises(ll.InputError, match="keeps no residuals by output"):
        ll.select_prior(sparse, ll.Evidence(noise="output", data=data))


@pytest.mark.parametrize("method", [ll.Evidence, "evidence"])
def test_methods_are_objects(method: Any) -> None:
    with pytest.raises(ll.InputError, match=r"pass an object such as ll.Evidence\(\)"):
        ll.select_prior(fitted(), method)
    with pytest.raises(ll.InputError, match="has no prior to choose"):
        ll.select_prior(nn.Linear(2, 1), ll.Evidence())  # type: ignore[type-var]
