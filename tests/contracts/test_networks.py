"""Every network of the cases against the oracle: Jacobian, products, curvature, latent covariances; nothing touched."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.posteriors import WeightPosterior
from tests import reference
from tests.cases import NETWORKS, NetworkCase
from tests.checks import close, noise, rest_of, same
from tests.truth import Truth, truth_of

# float64 on both sides: what is left is rounding, magnified by the smallest prior precision used here.
TOLERANCE = 1e-8
PRIOR = 0.7

networks = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case.name == "mlp_wide" else []) for case in NETWORKS],
    ids=[case.name for case in NETWORKS],
)
# Layers that the library does not know by name, or whose taps do not tell all, take the dense path with a warning.
pytestmark = pytest.mark.filterwarnings(
    "ignore::linlap.LinlapWarning", "ignore:There is a performance drop:UserWarning"
)


@cache
def network_of(name: str) -> ll.Network:
    return ll.Network(truth_of(name).model())


@cache
def posterior_of(name: str, kind: type[ll.Full] | type[ll.Diagonal]) -> WeightPosterior:
    return truth_of(name).fit(kind(), PRIOR)


def weight_covariance(truth: Truth, kind: type[ll.Full] | type[ll.Diagonal]) -> Tensor:
    H = truth.H if kind is ll.Full else reference.diagonal_ggn(truth.J, truth.lam)
    return reference.posterior_covariance(H, PRIOR)


@networks
def test_jacobian(case: NetworkCase) -> None:
    truth = truth_of(case.name)
    network = ll.Network(truth.model())
    assert network.names == truth.names
    lin = network.linearize(truth.x)
    close(lin.mean, truth.f, TOLERANCE)
    close(lin.jacobian.dense(), truth.J, TOLERANCE)
    close(network.outputs(truth.x), truth.f, TOLERANCE)
    close(network.vector(), truth.theta, 0.0)


@networks
def test_jacobian_of_seeds(case: NetworkCase) -> None:
    """As many as the likelihood's curvature asks for, different for each input."""
    truth = truth_of(case.name)
    seeds = noise(*truth.f.shape[:1], 3, truth.f.shape[1])
    lin = network_of(case.name).linearize(truth.x, lambda f: seeds + 0 * f.unsqueeze(1))
    close(lin.jacobian.dense(), seeds @ truth.J, TOLERANCE)


@networks
def test_products_with_vectors(case: NetworkCase) -> None:
    truth, network = truth_of(case.name), network_of(case.name)
    v, u = noise(3, network.size), noise(*truth.f.shape)
    forward, backward = torch.einsum("ncp,mp->mnc", truth.J, v), torch.einsum("nc,ncp->p", u, truth.J)
    jacobian = network.linearize(truth.x).jacobian
    close(jacobian.jvp(v), forward, TOLERANCE)
    close(jacobian.vjp(u), backward, TOLERANCE)
    close(network.jvp(truth.x, network.named(v[0])), forward[0], TOLERANCE)
    found = network.vjp(truth.x, u)
    close(torch.cat([found[name].flatten() for name in network.names]), backward, TOLERANCE)
    # Nothing of one product is left behind for the next.
    close(network.linearize(truth.x).jacobian.dense(), truth.J, TOLERANCE)


@networks
def test_full_curvature(case: NetworkCase) -> None:
    truth, posterior = truth_of(case.name), posterior_of(case.name, ll.Full)
    eye = torch.eye(len(truth.H), dtype=torch.float64)
    close(posterior.precision.dense(), truth.H + PRIOR * eye, TOLERANCE)
    assert posterior.curvature.totals.count == len(truth.f)
    log_likelihood = posterior.curvature.totals.log_likelihood
    close(torch.tensor(log_likelihood, dtype=torch.float64), truth.log_likelihood, TOLERANCE)


@networks
def test_diagonal_curvature(case: NetworkCase) -> None:
    truth, posterior = truth_of(case.name), posterior_of(case.name, ll.Diagonal)
    close(1 / posterior.precision.variance(), reference.diagonal_ggn(truth.J, truth.lam) + PRIOR, TOLERANCE)


@networks
@pytest.mark.parametrize("kind", [ll.Full, ll.Diagonal], ids=["full", "diagonal"])
def test_latent(case: NetworkCase, kind: type[ll.Full] | type[ll.Diagonal]) -> None:
    truth, posterior = truth_of(case.name), posterior_of(case.name, kind)
    joint = reference.joint_latent_covariance(truth.J, weight_covariance(truth, kind))
    each = torch.stack([joint[n, :, n] for n in range(len(joint))])
    latent = posterior.latent(truth.x)
    close(latent.mean, truth.f, TOLERANCE)
    close(latent.cov, each, TOLERANCE)
    close(posterior.latent(truth.x, diagonal=True).cov, each.diagonal(dim1=1, dim2=2), TOLERANCE)
    close(posterior.latent(truth.x, joint=True).cov, joint, TOLERANCE)


@networks
def test_model_and_inputs_are_untouched(case: NetworkCase) -> None:
    """Gradients of the user's own are there, and modes are mixed: all stays as it was, to the last bit."""
    truth = truth_of(case.name)
    model = truth.model()
    for k, weight in enumerate(model.parameters()):
        weight.grad = None if k % 2 else torch.full_like(weight, 0.5)
    for k, module in enumerate(model.modules()):
        module.training = bool(k % 2)
    given = [t.clone() for t in reference.tensors_of(truth.x)]
    before = rest_of(model)
    posterior = ll.laplace(model, (truth.x, truth.y), truth.likelihood, ll.Kron(), PRIOR, progress=False)
    posterior.latent(truth.x)
    posterior.sample_functions(truth.x, 2)
    ll.BNN(posterior, samples=1).outputs(truth.x)
    posterior.network.jvp(truth.x, posterior.network.named(noise(posterior.network.size)))
    assert same(rest_of(model), before)
    assert all(torch.equal(t, g) for t, g in zip(reference.tensors_of(truth.x), given, strict=True))


@networks
def test_sampled_weights_do_not_stay(case: NetworkCase) -> None:
    truth = truth_of(case.name)
    posterior = truth.fit(ll.Full(), PRIOR)
    ll.BNN(posterior, samples=2).outputs(truth.x)
    close(posterior.network.outputs(truth.x), truth.f, TOLERANCE)
    close(posterior.latent(truth.x).cov, posterior_of(case.name, ll.Full).latent(truth.x).cov, TOLERANCE)


@networks
def test_outputs_of_given_weights(case: NetworkCase) -> None:
    """The predictive by sampled weights needs the network at weights other than its own."""
    truth, network = truth_of(case.name), network_of(case.name)
    weights = truth.theta + 0.1 * noise(network.size)
    expected = reference.bnn_outputs(truth.model(), truth.x, truth.names, weights[None])[0]
    with torch.no_grad():
        close(network.outputs_at(network.named(weights), truth.x), expected, TOLERANCE)


WARNS = {  # by design: their layers are not what they seem
    "called_and_functional", "conv_by_type_only", "linear_by_type_only", "positions_first_merged", "sorted_inside",
    "tied_embedding", "tied_transposed", "twins_concatenated", "user_hooks",
}  # fmt: skip


@networks
def test_warns_of_slow_paths_only_where_taps_mislead(case: NetworkCase) -> None:
    truth = truth_of(case.name)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ll.Network(truth.model()).prepare(truth.x)
    mine = [str(warning.message) for warning in found if issubclass(warning.category, ll.LinlapWarning)]
    assert bool(mine) == (case.name in WARNS), mine
