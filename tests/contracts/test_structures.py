"""What every structure promises: the precision it says, sums over data however they come, cheap priors, evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import linlap as ll
from linlap.network import network as network_module
from linlap.posteriors import WeightPosterior
from tests import reference
from tests.cases import STRUCTURES, STRUCTURES_BY_NAME
from tests.checks import close, varied
from tests.structures import StructureCase
from tests.truth import Truth, truth_of

NETWORKS = ["mlp_many_data", "mlp_3_hidden", "positions", "two_position_axes", "deep_linear", "frozen_some"]
PER_LAYER = {"0": 0.6, "2": 1.7, "fc": 0.6, "head": 1.7, "4": 3.0, "6": 0.9}
KINDS = ["scalar", "per layer", "per weight"]

structures = pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
networks = pytest.mark.parametrize("name", NETWORKS)


def many() -> Truth:
    """No Kronecker factor has an eigenvalue twice, so that a prior has one diagonal in its eigenbasis."""
    return truth_of("mlp_many_data", "categorical")


def prior_of_kind(kind: str, truth: Truth) -> Any:
    if kind == "per layer":
        modules = {name.rpartition(".")[0] for name in truth.names}
        return {module: PER_LAYER[module] for module in modules}
    return varied(len(truth.theta)) if kind == "per weight" else 0.7


@cache
def fitted(structure: str, network: str = "mlp_many_data") -> WeightPosterior:
    return truth_of(network, "categorical" if network == "mlp_many_data" else None).fit(
        STRUCTURES_BY_NAME[structure].structure, 0.7
    )


def same_posterior(one: WeightPosterior, other: WeightPosterior, tolerance: float = 1e-9) -> None:
    close(one.precision.dense(), other.precision.dense(), tolerance)
    assert one.curvature.totals.count == other.curvature.totals.count
    assert one.curvature.totals.log_likelihood == pytest.approx(other.curvature.totals.log_likelihood, rel=1e-12)


@structures
@networks
@pytest.mark.parametrize("kind", ["scalar", "per layer"])
def test_precision(case: StructureCase, name: str, kind: str) -> None:
    truth = truth_of(name)
    prior = prior_of_kind(kind, truth)
    posterior = truth.fit(case.structure, ll.Prior(prior))
    close(posterior.precision.dense(), case.precision(truth, prior))


@pytest.mark.parametrize("case", [case for case in STRUCTURES if case.per_weight], ids=lambda case: case.name)
def test_precision_with_a_prior_for_each_weight(case: StructureCase) -> None:
    """As a flat vector, and as tensors of the parameters' shapes."""
    truth, posterior = many(), fitted(case.name)
    prior = prior_of_kind("per weight", truth)
    expected = case.precision(truth, prior)
    close(posterior.with_prior(ll.Prior(prior)).precision.dense(), expected)
    by_name = posterior.network.named(prior)
    close(posterior.with_prior(ll.Prior(by_name)).precision.dense(), expected)


@structures
@networks
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_latent(case: StructureCase, name: str, temperature: float) -> None:
    truth = truth_of(name)
    posterior = truth.fit(case.structure, ll.Prior(0.7, temperature))
    Σ = temperature * torch.linalg.inv(case.precision(truth, 0.7))
    joint = reference.joint_latent_covariance(truth.J, Σ)
    each = reference.latent_covariance(truth.J, Σ)
    close(posterior.latent(truth.x).cov, each)
    close(posterior.latent(truth.x).variance, each.diagonal(dim1=1, dim2=2))
    close(posterior.latent(truth.x, diagonal=True).cov, each.diagonal(dim1=1, dim2=2))
    close(posterior.latent(truth.x, joint=True).cov, joint)
    close(posterior.latent(truth.x, joint=True).marginals().cov, each)
    spread = posterior.variance()
    close(torch.cat([spread[key].flatten() for key in truth.names]), Σ.diagonal())


# Sums over data


@structures
def test_curvatures_add(case: StructureCase) -> None:
    truth = many()
    parts = [truth.fit(case.structure, 0.7, (truth.x[rows], truth.y[rows])) for rows in (slice(5), slice(5, None))]
    if not case.adds:
        with pytest.raises(ll.InputError, match="corrected"):
            parts[0].curvature + parts[1].curvature
        return
    both = WeightPosterior(
        parts[0].network,
        truth.likelihood,
        case.structure,
        parts[0].curvature + parts[1].curvature,
        ll.Prior(0.7),
    )
    if isinstance(case.structure, ll.LowRank) and case.structure.rank < 1000:
        # What each part kept, together: it is the operators that add.
        eye = torch.eye(len(truth.theta), dtype=torch.float64)
        total = sum(part.precision.dense() - 0.7 * eye for part in parts)
        close(both.precision.dense(), total + 0.7 * eye)
    else:
        same_posterior(both, fitted(case.name))
    # What was added is as it was.
    same_posterior(parts[0], truth.fit(case.structure, 0.7, (truth.x[:5], truth.y[:5])))


@structures
def test_curvatures_of_other_kinds_do_not_add(case: StructureCase) -> None:
    other = "diagonal" if case.name == "full" else "full"
    with pytest.raises(ll.InputError, match="same structure"):
        fitted(case.name).curvature + fitted(other).curvature
    with pytest.raises(ll.InputError, match="same structure|parameters"):
        fitted(case.name).curvature + truth_of("deep_linear").fit(case.structure).curvature


class Rows(Dataset[Any]):
    """Counts how often it was gone through."""

    def __init__(self, truth: Truth) -> None:
        self.truth, self.asked = truth, 0

    def __len__(self) -> int:
        return len(self.truth.x)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return self.truth.x[index], self.truth.y[index]


class Again:
    """Re-iterable batches, of sizes that differ."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def __iter__(self) -> Iterator[Any]:
        for rows in (slice(1), slice(1, 6), slice(6, None)):
            yield self.truth.x[rows], self.truth.y[rows]


FORMS: dict[str, Callable[[Truth], Any]] = {
    "arrays": lambda t: (t.x.numpy(), t.y.numpy()),
    "dataset": Rows,
    "loader": lambda t: DataLoader(TensorDataset(t.x, t.y), batch_size=4),
    "shuffled loader": lambda t: DataLoader(TensorDataset(t.x, t.y), batch_size=3, shuffle=True),
    "list": lambda t: [(t.x[:6], t.y[:6]), [t.x[6:], t.y[6:]]],
    "pair of batches": lambda t: ((t.x[:6], t.y[:6]), (t.x[6:], t.y[6:])),
    "pair of dicts": lambda t: ({"input": t.x[:6], "labels": t.y[:6]}, {"input": t.x[6:], "labels": t.y[6:]}),
    "re-iterable": Again,
    "reversed": lambda t: (t.x.flip(0), t.y.flip(0)),
}


@structures
@pytest.mark.parametrize("form", FORMS)
def test_data_in_every_form(case: StructureCase, form: str) -> None:
    truth = many()
    same_posterior(truth.fit(case.structure, 0.7, FORMS[form](truth)), fitted(case.name))


@structures
def test_batches_and_memory_make_no_difference(case: StructureCase, monkeypatch: pytest.MonkeyPatch) -> None:
    truth, whole = many(), fitted(case.name)
    for size in (1, 5, 100):
        same_posterior(truth.fit(case.structure, 0.7, batch_size=size), whole)
    latent, joint = whole.latent(truth.x), whole.latent(truth.x, joint=True)
    close(whole.latent(truth.x, memory=1).cov, latent.cov, 1e-10)
    close(torch.cat([whole.latent(row[None]).cov for row in truth.x]), latent.cov, 1e-10)
    monkeypatch.setattr(network_module, "default_budget", lambda device: 1)
    same_posterior(truth.fit(case.structure, 0.7), whole)
    close(whole.latent(truth.x).cov, latent.cov, 1e-10)
    close(whole.latent(truth.x, joint=True).cov, joint.cov, 1e-10)


# Priors


def count_decompositions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    for name in ("eigh", "eigvalsh", "cholesky", "cholesky_ex", "svd", "qr", "inv", "solve"):
        original = getattr(torch.linalg, name)

        def counted(*args: Any, original: Any = original, name: str = name, **kwargs: Any) -> Any:
            made.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(torch.linalg, name, counted)
    return made


@structures
def test_another_prior_costs_no_pass_and_no_decomposition(case: StructureCase, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = many()
    data = Rows(truth)
    posterior = truth.fit(case.structure, 0.7, data)
    posterior.latent(truth.x)
    asked = data.asked
    made = count_decompositions(monkeypatch)
    for prior in (3.0, ll.Prior(0.2, temperature=0.5)):
        other = posterior.with_prior(prior)
        other.latent(truth.x)
        other.log_evidence()
        other.sample(2)
    assert data.asked == asked
    assert not made
    if not isinstance(case.structure, ll.Full | ll.LowRank):  # where a prior that differs between weights rotates H
        posterior.with_prior(ll.Prior(prior_of_kind("per weight", truth))).log_evidence()
        assert not made


@structures
@pytest.mark.parametrize("kind", ["scalar", "per layer"])
def test_another_prior_is_as_if_fitted_with_it(case: StructureCase, kind: str) -> None:
    truth, posterior = many(), fitted(case.name)
    before = posterior.latent(truth.x).cov
    prior = ll.Prior(prior_of_kind(kind, truth), temperature=0.4)
    other = posterior.with_prior(prior)
    again = truth.fit(case.structure, prior)
    close(other.latent(truth.x).cov, again.latent(truth.x).cov, 1e-12)
    close(other.log_evidence(), again.log_evidence(), 1e-12)
    assert torch.equal(posterior.latent(truth.x).cov, before)


# Evidence


@pytest.mark.parametrize(
    ("case", "kind"),
    [(case, kind) for case in STRUCTURES for kind in KINDS if case.per_weight or kind != "per weight"],
    ids=lambda value: getattr(value, "name", value),
)
def test_log_evidence(case: StructureCase, kind: str) -> None:
    truth = many()
    prior = prior_of_kind(kind, truth)
    expected = reference.log_evidence(
        truth.log_likelihood, truth.theta, case.precision(truth, prior), truth.prior(prior)
    )
    posterior = fitted(case.name).with_prior(ll.Prior(prior, temperature=0.3))  # which plays no part
    close(posterior.log_evidence(), expected, 1e-9)


@structures
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_the_evidence(case: StructureCase, kind: str) -> None:
    """By autograd through the prior, against differences."""
    truth, posterior = many(), fitted(case.name)
    given = prior_of_kind(kind, truth)
    names = sorted(given) if isinstance(given, dict) else []
    start = torch.as_tensor([given[name] for name in names] if names else given, dtype=torch.float64)

    def evidence(values: Tensor) -> Tensor:
        prior = {name: values[k] for k, name in enumerate(names)} if names else values
        return posterior.with_prior(ll.Prior(prior)).log_evidence()

    leaf = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(evidence(leaf), leaf)
    step = 1e-5
    differences = torch.zeros_like(start).reshape(-1)
    for k in range(start.numel()):
        shift = torch.zeros_like(differences)
        shift[k] = step
        shift = shift.reshape(start.shape)
        differences[k] = (evidence(start + shift) - evidence(start - shift)) / (2 * step)
    close(gradient.reshape(-1), differences, 1e-6)


# Extremes


@structures
@pytest.mark.parametrize("likelihood", [ll.Categorical(), ll.Bernoulli()], ids=["categorical", "bernoulli"])
def test_saturated_outputs(case: StructureCase, likelihood: Any) -> None:
    """Outputs of ±1e4 in float32, whose Λ is zero: all that is left is the prior."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    with torch.no_grad():
        model[2].weight.mul_(3e4)
    x = torch.randn(6, 3)
    f = model(x).detach()
    assert f.abs().max() > 1e4
    y = f.argmax(1) if isinstance(likelihood, ll.Categorical) else (f > 0).float()
    posterior = ll.laplace(model, (x, y), likelihood, case.structure, 0.5, progress=False)
    latent = posterior.latent(x)
    assert torch.isfinite(latent.cov).all()
    assert (latent.variance > 0).all()
    assert torch.isfinite(posterior.log_evidence())
    assert all(torch.isfinite(w).all() for w in posterior.sample(3).values())
    assert torch.isfinite(ll.GLM(posterior).moments(x).total).all()


@structures
def test_float32_is_close_to_float64(case: StructureCase) -> None:
    truth, double = many(), fitted(case.name)
    model = truth.model().float()
    posterior = ll.laplace(model, (truth.x.float(), truth.y), truth.likelihood, case.structure, 0.7, progress=False)
    latent = posterior.latent(truth.x.float())
    assert latent.cov.dtype == torch.float32
    close(latent.cov, double.latent(truth.x).cov, 1e-3)
    assert posterior.precision.dense().dtype == torch.float64


@structures
def test_priors_from_arrays_and_lists(case: StructureCase, tmp_path: Path) -> None:
    truth, posterior = many(), fitted(case.name)
    values = varied(len(truth.theta))
    expected = posterior.with_prior(ll.Prior(values)).latent(truth.x).cov
    for given in (values.numpy(), values.tolist()):
        found = posterior.with_prior(ll.Prior(given))
        close(found.latent(truth.x).cov, expected, 1e-12)
        ll.save(found, tmp_path / "posterior.safetensors")
    assert ll.Prior(np.float32(2)).precision == 2.0
    ll.save(posterior.with_prior(ll.Prior(np.int64(2), np.float32(0.5))), tmp_path / "posterior.safetensors")


def test_kron_curvatures_of_other_forms_do_not_add() -> None:
    truth = truth_of("layer_norm_no_bias")
    one, other = (truth.fit(ll.Kron(dense_limit=limit)).curvature for limit in (2, 1024))
    with pytest.raises(ll.InputError, match="dense_limit"):
        one + other
    many_data = many()
    plain, corrected = (many_data.fit(ll.Kron(corrected=flag)).curvature for flag in (False, True))
    for pair in ((plain, corrected), (corrected, plain)):
        with pytest.raises(ll.InputError, match="corrected"):
            pair[0] + pair[1]


# Determinants, and other noise


@structures
@pytest.mark.parametrize("name", [*NETWORKS, "embedding", "layer_norm", "conv2d_groups"])
def test_spectra_give_the_determinant(case: StructureCase, name: str) -> None:
    """For priors of one number, and of one a parameter where they are by parameter."""
    truth = truth_of(name)
    posterior = truth.fit(case.structure, 0.7)
    by_name = dict(zip(truth.names, varied(len(truth.names)).tolist(), strict=True))
    for uniform, prior in ((True, ll.Prior(0.7)), (False, ll.Prior(by_name))):
        spectra = posterior.curvature.spectra(uniform)
        if not spectra:
            assert not uniform
            continue
        total = torch.zeros((), dtype=torch.float64)
        for part in spectra:
            assert uniform or len(part.names) == 1
            d = 0.7 if uniform else by_name[part.names[0]]
            total = total + part.times * (part.values + d**part.power).log().sum()
        close(total, posterior.curvature.precision(prior).logdet(), 1e-9)


@structures
def test_scaled(case: StructureCase) -> None:
    posterior = fitted(case.name).prepare()
    known = posterior.curvature.scaled(torch.tensor(2.5, dtype=torch.float64))
    eye = 0.7 * torch.eye(posterior.network.size, dtype=torch.float64)
    damped = getattr(posterior.curvature, "damping", "none") == "sqrt"
    if not damped:
        close(known.precision(ll.Prior(0.7)).dense(), 2.5 * (posterior.precision.dense() - eye) + eye)
    fresh = fitted(case.name).curvature.with_totals(posterior.curvature.totals)
    for name in [name for name in vars(fresh) if name.startswith("_")]:
        del vars(fresh)[name]
    again = fresh.scaled(torch.tensor(2.5, dtype=torch.float64))
    close(known.precision(ll.Prior(0.7)).dense(), again.precision(ll.Prior(0.7)).dense(), 1e-9)
