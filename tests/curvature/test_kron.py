"""Kron against the book, and where it is exact."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linlap as ll
from linlap.posteriors import WeightPosterior
from tests import reference, reference_layers
from tests.checks import close, noise, varied
from tests.truth import Truth, truth_of

SHARINGS = ["expand", "reduce", "sum"]
# Linear on one and several positions, convolutions with every option, embeddings, layers called twice, norms, and
# parameters that no layer explains.
NETWORKS = [
    "mlp_2_hidden", "positions", "two_position_axes", "linear_no_bias", "linear_reused", "linear_reused_other_lengths",
    "conv1d", "conv1d_stride_padding", "conv1d_same_dilated", "conv1d_replicate", "conv2d", "conv2d_stride_remainder",
    "conv2d_same_even", "conv2d_reflect", "conv2d_circular", "conv2d_dilation", "conv2d_groups", "conv2d_depthwise",
    "conv_groups_circular", "conv_reused", "max_pool", "inplace_relu_conv", "conv_transpose1d",
    "conv_transpose1d_dilation", "conv_transpose2d", "conv_transpose2d_gaps", "conv_transpose2d_groups", "embedding",
    "embedding_padding", "embedding_of_category", "embedding_two_axes", "batch_norm1d", "batch_norm_mlp",
    "batch_norm2d", "layer_norm", "group_norm", "attention", "added_places", "bare_only", "prelu", "scale", "lstm",
    "frozen_some",
]  # fmt: skip
EYE = 0.7

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def curvature_of(posterior: WeightPosterior) -> Tensor:
    """H, from the precision under a scalar prior."""
    P = posterior.precision.dense()
    return P - float(posterior.prior.precision) * torch.eye(len(P), dtype=torch.float64)


def blocks_of(truth: Truth, H: Tensor) -> Tensor:
    where = reference.slices(truth.model(), truth.names)
    return torch.block_diag(*(H[where[name], where[name]] for name in truth.names))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_by_the_book(name: str, sharing: Any) -> None:
    truth = truth_of(name)
    H = reference_layers.kron_ggn(truth.model(), truth.x, truth.names, truth.lam, sharing)
    if sharing == "reduce" and name.startswith("embedding"):
        # Averaged one-hot vectors have a full second moment, of which the library keeps the diagonal.
        H = diagonal_tables(truth, H)
    posterior = truth.fit(ll.Kron(sharing=sharing), EYE)
    close(posterior.precision.dense(), H + EYE * torch.eye(len(H), dtype=torch.float64))
    Σ = reference.posterior_covariance(H, EYE)
    latent = reference.joint_latent_covariance(truth.J, Σ)
    close(posterior.latent(truth.x, joint=True).cov, latent)
    close(posterior.latent(truth.x).cov, reference.latent_covariance(truth.J, Σ))


def diagonal_tables(truth: Truth, H: Tensor) -> Tensor:
    where, H = reference.slices(truth.model(), truth.names)["fc.weight"], H.clone()
    V, d = truth.model().get_parameter("fc.weight").shape
    words = torch.arange(V).repeat_interleave(d)
    H[where, where] *= words[:, None] == words
    return H


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("sharing", ["expand", "sum"])
def test_corrected_by_the_book(name: str, sharing: Any) -> None:
    truth = truth_of(name)
    H = reference_layers.kron_ggn(truth.model(), truth.x, truth.names, truth.lam, sharing, corrected=True)
    posterior = truth.fit(ll.Kron(sharing=sharing, corrected=True), EYE)
    close(posterior.precision.dense(), H + EYE * torch.eye(len(H), dtype=torch.float64))
    close(posterior.latent(truth.x).cov, reference.latent_covariance(truth.J, reference.posterior_covariance(H, EYE)))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_exact_for_one_datum(sharing: Any, corrected: bool) -> None:
    for likelihood in ("gaussian", "categorical", "poisson"):
        truth = truth_of("mlp_one_datum", likelihood)
        close(curvature_of(truth.fit(ll.Kron(sharing=sharing, corrected=corrected))), blocks_of(truth, truth.H))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_exact_for_deep_linear_networks(sharing: Any, corrected: bool) -> None:
    """Of whatever depth: g is the same for all data there, and a Gaussian's Λ too."""
    for likelihood in ("gaussian", "gaussian_per_output"):
        truth = truth_of("deep_linear", likelihood)
        close(curvature_of(truth.fit(ll.Kron(sharing=sharing, corrected=corrected))), blocks_of(truth, truth.H))


def test_expand_is_exact_for_a_linear_layer_on_positions() -> None:
    """And neither of the others is."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Flatten()).double()
    x = noise(4, 5, 3)
    f, J = reference.jacobian(model, x, ["0.weight"])
    H = reference.full_ggn(J, reference.lam("gaussian", f))
    errors = {}
    for sharing in SHARINGS:
        structure = ll.Kron(sharing=sharing)
        posterior = ll.laplace(model, (x, f), ll.Gaussian(), structure, parameters=["0.weight"], progress=False)
        errors[sharing] = float((curvature_of(posterior) - H).norm() / H.norm())
    assert errors["expand"] < 1e-12
    assert min(errors["reduce"], errors["sum"]) > 0.1


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "embedding", "attention"])
def test_corrected_keeps_the_trace_and_is_nearer(name: str) -> None:
    truth = truth_of(name)
    plain, corrected = (curvature_of(truth.fit(ll.Kron(corrected=flag))) for flag in (False, True))
    for key, where in reference.slices(truth.model(), truth.names).items():
        if key.endswith("weight"):
            exact = truth.H[where, where]
            close(corrected[where, where].trace(), exact.trace())
            assert (corrected[where, where] - exact).norm() <= (1 + 1e-12) * (plain[where, where] - exact).norm()


@pytest.mark.parametrize("name", ["conv2d_groups", "conv_transpose2d_groups", "embedding", "mlp_2_hidden"])
def test_dampened(name: str) -> None:
    """√δ is added to both factors, and δ to all that has none."""
    truth = truth_of(name)
    model, δ = truth.model(), 0.09
    posterior = truth.fit(ll.Kron(damping="sqrt"), δ)
    H = reference_layers.kron_ggn(model, truth.x, truth.names, truth.lam)
    where = reference.slices(model, truth.names)
    P = posterior.precision.dense()
    for key in truth.names:
        layer, _, kind = key.rpartition(".")
        module = model.get_submodule(layer)
        if kind == "bias":
            expected = H[where[key], where[key]] + δ * torch.eye(P[where[key]].shape[0], dtype=torch.float64)
        else:
            pairs = reference_layers.kron_pairs(model, truth.x, layer, truth.lam, "expand")
            expected = reference_layers.weight_block(module, [dampened(pair, δ**0.5) for pair in pairs])
        close(P[where[key], where[key]], expected)


def dampened(pair: reference.KronFactors, shift: float) -> reference.KronFactors:
    A, G = (M + shift * torch.eye(len(M), dtype=torch.float64) for M in (pair.A, pair.G))
    return reference.KronFactors(A, G, pair.B)


@pytest.mark.parametrize("name", ["conv_transpose2d_groups", "conv2d_groups", "embedding", "mlp_2_hidden"])
def test_dampened_with_a_prior_for_each_weight(name: str) -> None:
    """Put together again, vector by vector, in whichever eigenbasis was found: √d̃ goes to both eigenvalues."""
    truth = truth_of(name)
    d = varied(len(truth.theta))
    posterior = truth.fit(ll.Kron(damping="sqrt"), ll.Prior(d))
    P, where = posterior.precision.dense(), reference.slices(truth.model(), truth.names)
    curvature: Any = posterior.curvature
    for key, pair in curvature.pairs.items():
        λ_a, U_a, λ_g, U_g = pair.eigen
        if U_a is None:  # one-hot inputs
            U_a = torch.eye(λ_a.shape[-1], dtype=torch.float64).unsqueeze(0)
        k, a, g = len(λ_g), λ_a.shape[-1], λ_g.shape[-1]
        entries = d[where[key]].reshape(k, *((a, g) if pair.rows_are_a else (g, a)))
        blocks = [
            dampened_block(λ_a[n], U_a[n], λ_g[n], U_g[n], entries[n] if pair.rows_are_a else entries[n].T)
            for n in range(k)
        ]
        if not pair.rows_are_a:
            turned = torch.arange(a * g).reshape(a, g).T.reshape(-1)
            blocks = [block[turned][:, turned] for block in blocks]
        close(P[where[key], where[key]], torch.block_diag(*blocks))


def dampened_block(λ_a: Tensor, U_a: Tensor, λ_g: Tensor, U_g: Tensor, d: Tensor) -> Tensor:
    """For entries in the order of (input, output)."""
    total = torch.zeros(d.numel(), d.numel(), dtype=d.dtype)
    for i, j in itertools.product(range(len(λ_a)), range(len(λ_g))):
        u = torch.kron(U_a[:, i], U_g[:, j])
        shift = (u.square() * d.reshape(-1)).sum().sqrt()
        total += (λ_a[i] + shift) * (λ_g[j] + shift) * torch.outer(u, u)
    return total


def test_dampening_concentrates_the_posterior() -> None:
    truth = truth_of("mlp_2_hidden")
    plain, sqrt = (truth.fit(ll.Kron(damping=d), 0.5).latent(truth.x, diagonal=True).cov for d in ("none", "sqrt"))
    assert (sqrt < plain).all()


@pytest.mark.parametrize("name", ["conv2d_groups", "conv_transpose2d_groups", "embedding", "layer_norm", "conv2d"])
@pytest.mark.parametrize("corrected", [False, True])
def test_prior_by_weight_keeps_its_trace_and_the_eigenbasis(name: str, corrected: bool) -> None:
    """Wherever a factor has an eigenvalue twice its basis is not unique; what holds for every one is tested."""
    truth = truth_of(name)
    d = varied(len(truth.theta))
    posterior = truth.fit(ll.Kron(corrected=corrected), 0.7)
    H = curvature_of(posterior)
    P = posterior.with_prior(ll.Prior(d)).precision.dense()
    where = reference.slices(truth.model(), truth.names)
    for key in truth.names:
        block, curvature = (M[where[key], where[key]] for M in (P, H))
        close((block - curvature).trace(), d[where[key]].sum())
        close(block @ curvature, curvature @ block)
    low, high = torch.linalg.eigvalsh(P - H)[[0, -1]]
    assert d.min() - 1e-9 <= low
    assert high <= d.max() + 1e-9


def test_a_prior_by_layer_is_exact() -> None:
    truth = truth_of("conv_transpose2d_groups")
    prior = {name: 0.5 + k for k, name in enumerate(truth.names)}
    H = reference_layers.kron_ggn(truth.model(), truth.x, truth.names, truth.lam)
    close(truth.fit(ll.Kron(), ll.Prior(prior)).precision.dense(), reference.posterior_precision(H, truth.prior(prior)))


@pytest.mark.parametrize("name", ["mlp_2_hidden", "layer_norm", "added_places", "conv2d"])
def test_large_blocks_keep_their_diagonal(name: str) -> None:
    truth = truth_of(name)
    H = curvature_of(truth.fit(ll.Kron(dense_limit=4)))
    full = curvature_of(truth.fit(ll.Kron()))
    exact = blocks_of(truth, truth.H)
    where = reference.slices(truth.model(), truth.names)
    weights = {key for key in truth.names if truth.model().get_parameter(key).ndim > 1 and key != "places"}
    for key in truth.names:
        block, allowed = H[where[key], where[key]], full[where[key], where[key]]
        small = allowed.shape[0] <= 4
        shares = key.endswith(".bias") and torch.equal(block, allowed)  # a bias in the eigenbasis of its weight is free
        expected = allowed if key in weights or small or shares else exact[where[key], where[key]].diagonal().diag()
        close(block, expected)


@pytest.mark.parametrize(
    "name", ["batch_norm_mlp", "batch_norm1d", "tied_linears", "tied_without_bias", "frozen_some", "mlp_2_hidden"]
)
@pytest.mark.parametrize("options", [{}, {"damping": "sqrt"}, {"corrected": True}], ids=str)
def test_biases_have_their_exact_block_whatever_shares_their_basis(name: str, options: dict[str, Any]) -> None:
    truth = truth_of(name)
    H = truth.fit(ll.Kron(**options), 0.7).precision.dense()
    where = reference.slices(truth.model(), truth.names)
    for key in truth.names:
        if key.endswith("bias"):
            block = where[key]
            close(
                H[block, block], truth.H[block, block] + 0.7 * torch.eye(block.stop - block.start, dtype=torch.float64)
            )


def test_patterns_of_parameters_in_any_order() -> None:
    """A bias whose weight is not inferred, and a weight whose bias is not."""
    truth = truth_of("mlp_2_hidden")
    whole = reference_layers.kron_ggn(truth.model(), truth.x, truth.names, truth.lam)
    where = reference.slices(truth.model(), truth.names)
    for chosen in itertools.combinations(truth.names, 3):
        posterior = truth.fit(ll.Kron(), 0.7, parameters=list(chosen))
        expected = torch.block_diag(*(whole[where[key], where[key]] for key in truth.names if key in chosen))
        close(curvature_of(posterior), expected)


@pytest.mark.parametrize("options", [{"sharing": "sum"}, {"sharing": "reduce"}, {"damping": "sqrt"}], ids=str)
def test_sums_of_other_readings_do_not_add(options: dict[str, Any]) -> None:
    truth = truth_of("positions")
    one, other = truth.fit(ll.Kron()).curvature, truth.fit(ll.Kron(**options)).curvature
    with pytest.raises(ll.InputError, match="sharing='expand'.*same structure"):
        one + other


def test_networks_of_other_shapes_do_not_add() -> None:
    """Of the same names: some would broadcast."""
    x, y = noise(4, 1), torch.tensor([0, 1, 0, 1])
    models = [nn.Sequential(nn.Linear(1, k), nn.Tanh(), nn.Linear(k, 2)).double() for k in (1, 3)]
    for structure in (ll.Full(), ll.Diagonal(), ll.Kron(), ll.LowRank(2)):
        parts = [ll.laplace(model, (x, y), ll.Categorical(), structure, progress=False) for model in models]
        with pytest.raises(ll.InputError, match="other parameters"):
            parts[0].curvature + parts[1].curvature


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"damping": "root"}, "'none'.*'sqrt'"),
        ({"sharing": "mean"}, "expand.*reduce.*sum"),
        ({"corrected": True, "damping": "sqrt"}, "choose one"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ll.InputError, match=words):
        ll.Kron(**options)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_fewer_vectors_than_inputs(sharing: Any) -> None:
    """A of a wide layer that saw few vectors is decomposed within their range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(30, 3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    data = noise(6, 30, 8), torch.arange(6) % 3
    fits = [ll.laplace(model, part, ll.Categorical(), ll.Kron(sharing=sharing), 0.1) for part in halves(data)]
    curvature = fits[0].curvature + fits[1].curvature
    pair = curvature.pairs["0.weight"]
    assert pair.rank == (6 if sharing == "reduce" else 6 * 4)
    values, vectors, _, _ = pair.eigen
    close((vectors * values.unsqueeze(-2)) @ vectors.mT, pair.a / pair.count, 1e-13)
    x, whole = noise(4, 30, 8), replace(fits[0], curvature=curvature)
    unaware = replace(curvature, pairs={name: replace(p, rank=p.shape[-1]) for name, p in curvature.pairs.items()})
    close(whole.latent(x).cov, replace(whole, curvature=unaware).latent(x).cov, 1e-11)


def halves(data: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    x, y = data
    return [(x[:2], y[:2]), (x[2:], y[2:])]
