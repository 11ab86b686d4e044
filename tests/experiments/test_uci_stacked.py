"""The UCI experiment's stacked computations, against the library one network at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import linlap as ll
import linlap.cli
from experiments.uci import problems
from experiments.uci.case import Case, Part
from experiments.uci.linear import Fitted, log_evidence
from experiments.uci.linearised import climbed, independent
from experiments.uci.predict import bnn, tempered
from experiments.uci.scores import Scored, least
from experiments.uci.spaces import LayeredDiagonal, LayeredSpace, over_outputs, over_weights, quicker
from experiments.uci.stack import Networks, chunks
from linlap.refine.spaces import DiagonalSpace, FunctionSpace, WeightSpace, times
from tests.uci_sets import CPU, TINY, known, table


def case_of(classes: int, network: str = "1x50_tanh") -> Case:
    """Networks as they start, enlarged so that f is not near zero."""
    of = known("some", classes)
    splits = problems.splits_of(of, table(classes), TINY.splits, CPU)
    models = [problems.network(network, of, seed) for seed in TINY.splits for _ in TINY.precisions]
    theta = torch.stack([nn.utils.parameters_to_vector(model.parameters()).detach() for model in models])
    return Case(splits, Networks(models[0], 2 * theta), TINY)


def part_of(case: Case) -> Part:
    (part,) = case.parts()
    return part


def posteriors(case: Case, structure: Any) -> list[Any]:
    """The library's own, one by one."""
    made = []
    for index, (theta, d) in enumerate(zip(case.networks.theta, case.precision(), strict=True)):
        row = index // len(TINY.precisions)
        x, y = (part[row].double() if part.is_floating_point() else part[row] for part in case.splits.train)
        model = problems.network("1x50_tanh", case.splits.of, 0).double()
        nn.utils.vector_to_parameters(theta.double(), model.parameters())
        made.append(ll.laplace(model, (x, y), case.splits.likelihood, structure, float(d), progress=False))
    return made


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("space", [WeightSpace, FunctionSpace, DiagonalSpace])
def test_laws_and_evidence_are_the_librarys(classes: int, space: Any) -> None:
    case = case_of(classes)
    part = part_of(case)
    fitted = Fitted.laplace(space(part.problem))
    law, evidence = fitted.latent(part.J, part.f), log_evidence(fitted)
    structure = ll.Diagonal() if space is DiagonalSpace else ll.Full()
    for index, posterior in enumerate(posteriors(case, structure)):
        wanted = posterior.latent(part.x[index])
        assert torch.allclose(law.mean[index], wanted.mean, atol=1e-10)
        assert torch.allclose(law.cov[index], wanted.cov, rtol=1e-8, atol=1e-10)
        assert float(evidence[index]) == pytest.approx(float(posterior.log_evidence()), rel=1e-9)


@pytest.mark.parametrize("space", [WeightSpace, FunctionSpace, DiagonalSpace])
def test_sampled_weights_have_the_posteriors_covariance(space: Any) -> None:
    part = part_of(case_of(3))
    fitted = Fitted.laplace(space(part.problem))
    cov = fitted.latent(part.J, part.f).cov
    f = (part.J @ fitted.sampled(20_000, torch.Generator().manual_seed(0)).mT).unflatten(1, part.f.shape[1:])
    drawn = torch.einsum("mncs,mnds->mncd", f, f) / f.shape[-1]
    size = cov.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    assert ((drawn - cov) / size).abs().max() < 0.07


def test_networks_under_sampled_weights() -> None:
    case = case_of(3)
    networks, x = case.networks, case.each(case.x_new)
    e = 0.3 * torch.randn(len(networks), 5, networks.theta.shape[1], generator=torch.Generator().manual_seed(1))
    found = bnn(case.splits.likelihood, networks, e, x)
    model = problems.network("1x50_tanh", case.splits.of, 0)
    for index, theta in enumerate(networks.theta):
        f = []
        for draw in e[index]:
            nn.utils.vector_to_parameters(theta + draw, model.parameters())
            f.append(model(x[index]).detach())
        wanted = torch.stack(f).softmax(-1).mean(0)
        assert torch.allclose(found[index].softmax(-1), wanted, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_independent_outputs_are_the_librarys_process(classes: int) -> None:
    case = case_of(classes)
    part = part_of(case)
    variances = independent(part).cov
    for index, posterior in enumerate(posteriors(case, ll.Diagonal())):
        row = index // len(TINY.precisions)
        x, y = (part[row].double() if part.is_floating_point() else part[row] for part in case.splits.train)
        process = ll.gaussian_process(
            posterior.network.model, (x, y), case.splits.likelihood, prior=posterior.prior, progress=False
        )
        assert torch.allclose(variances[index], process.latent(part.x[index]).variance, rtol=1e-7)


@pytest.mark.parametrize(
    ("covariance", "space", "rate"), [("full", FunctionSpace, 1e-2), ("diagonal", DiagonalSpace, 1e-3)]
)
def test_refinement_is_the_librarys(covariance: Any, space: Any, rate: float) -> None:
    case = case_of(3)
    part = part_of(case)
    law = climbed(space(part.problem), 4, rate).latent(part.J, part.f)
    data = [
        tuple(
            p[index // len(TINY.precisions)].double() if p.is_floating_point() else p[index // len(TINY.precisions)]
            for p in case.splits.train
        )
        for index in range(len(case.networks))
    ]
    structure = ll.Full() if covariance == "full" else ll.Diagonal()
    for index, posterior in enumerate(posteriors(case, structure)):
        refined = ll.refine(posterior, data[index], ll.NaturalGradient(covariance, steps=4), progress=False)
        wanted = refined.latent(part.x[index])
        assert torch.allclose(law.mean[index], wanted.mean, atol=1e-8)
        assert torch.allclose(law.cov[index], wanted.cov, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("classes", "network"), [(2, "1x50_tanh"), (3, "1x50_tanh"), (3, "2x50_tanh")])
def test_jacobians_and_curvature_layer_by_layer(classes: int, network: str) -> None:
    case = case_of(classes, network)
    part = part_of(case)
    one = partial(functional_call, case.networks.module)
    for theta, x, J in zip(part.networks.theta, part.x, part.J, strict=True):
        weights = Networks(case.networks.module, theta)._pieces(theta)
        wanted = jacrev(one)(weights, (x,))
        assert torch.allclose(torch.cat([p.flatten(2) for p in wanted.values()], -1).flatten(0, 1), J, atol=1e-12)
    blocks = part.problem.blocks(part.f[:, :1] + part.problem.f)
    rows = part.problem.J.unflatten(1, part.problem.f.shape[1:])
    dense = torch.einsum("mncp,mncd,mndq->mpq", rows[:1, :, :, :], blocks[:1], rows[:1])
    found = LayeredSpace(part.problem, part.layers).curvature(blocks)
    assert torch.allclose(found[:1], dense, rtol=1e-9, atol=1e-9)
    assert torch.equal(found, found.mT) or torch.allclose(found, found.mT, atol=1e-12)


@pytest.mark.parametrize(("classes", "network"), [(2, "1x50_tanh"), (3, "1x50_tanh"), (3, "2x50_tanh")])
def test_products_with_the_jacobian_layer_by_layer(classes: int, network: str) -> None:
    part = part_of(case_of(classes, network))
    p, space = part.problem, LayeredSpace(part.problem, part.layers)
    u, v = torch.randn_like(p.f), torch.randn_like(p.theta)
    assert torch.allclose(space.seen(v).flatten(1), times(p.J, v), atol=1e-10)
    assert torch.allclose(space.pulled(u), times(p.J.mT, u.flatten(1)), atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "others"), [(WeightSpace, (FunctionSpace, LayeredSpace)), (DiagonalSpace, (LayeredDiagonal,))]
)
def test_a_refinement_layer_by_layer_is_the_same(kind: Any, others: Any) -> None:
    part = part_of(case_of(3))
    exact = climbed(kind(part.problem), 10, 1e-2).latent(part.J, part.f)
    for other in others:
        layers = () if other is FunctionSpace else (part.layers,)
        law = climbed(other(part.problem, *layers), 10, 1e-2).latent(part.J, part.f)
        assert torch.allclose(law.mean, exact.mean, atol=1e-9)
        assert torch.allclose(law.cov, exact.cov, rtol=1e-7, atol=1e-10)


def test_the_quicker_space_is_counted() -> None:
    part = part_of(case_of(3))
    assert isinstance(quicker(part.problem, part.layers, 250), FunctionSpace)
    tall = replace(part.problem, f=part.problem.f.repeat(1, 99, 1))
    assert isinstance(quicker(tall, part.layers, 250), LayeredSpace)
    satellite = [(36, 50), (50, 50), (50, 6)]
    by_layer = over_weights(4504, satellite, 1)
    assert by_layer < 0.1 * 4504 * 6 * 4706**2
    assert by_layer < over_outputs(4504, 6, satellite, 1)


@pytest.mark.parametrize("classes", [2, 3])
def test_temperatures_are_the_best_on_validation_data(classes: int) -> None:
    case = case_of(classes)
    f = 3 * part_of(case).f
    valid = case.splits.valid[1]
    scaled = tempered(case.splits, f)
    for index in range(len(f)):
        y = valid[index // len(TINY.precisions)]
        own, found = f[index, : len(y)], scaled[index, : len(y)]
        law = case.splits.likelihood
        best = min(ll.metrics.nll(law.observe(own / t), y) for t in np.logspace(-2, 2, 400))
        assert ll.metrics.nll(law.observe(found), y) <= best + 1e-6
        assert torch.allclose(found / own, (found / own)[0, 0])


def test_parts_of_networks_fit_the_memory() -> None:
    assert list(chunks(10, 3.0, 10.0)) == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    assert list(chunks(2, 30.0, 10.0)) == [slice(0, 1), slice(1, 2)]


def test_delta_is_chosen_by_validation_nll() -> None:
    valid = np.array([[3.0, 1.0, 2.0], [np.nan, 5.0, 4.0]])
    assert list(least(valid)) == [1, 2]
    test = np.arange(18.0).reshape(3, 2, 3)
    rows = list(Scored(valid, test).rows("map", (7, 8)))
    assert [row["value"] for row in rows if row["metric"] == "nll"] == [1.0, 5.0]
    assert [row["split"] for row in rows] == [7, 8] * 3
    assert [row["value"] for row in Scored(valid, test).rows("map", (7, 8), np.array([0, 0]))][:2] == [0.0, 3.0]
