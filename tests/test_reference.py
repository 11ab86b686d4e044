"""The oracle against other ways: torch.func, finite differences, torch.distributions, algebra."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, Poisson

from tests import reference
from tests.cases import BY_NAME, LIKELIHOODS, NETWORKS, LikelihoodCase, NetworkCase, likelihood_for

# Finite differences still judge these.
NOT_BY_FUNC = {
    "embedding_sparse": "torch.func takes no sparse gradients",
    "lstm_packed": "torch's packed LSTM asks for the storage of its tensors, which torch.func's have not",
    "distances": "torch's rule for batches of the backward pass of cdist is wrong",
}

networks = pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
SIZES = [(likelihood, C) for likelihood in LIKELIHOODS for C in (1, 2, 3, 4) if likelihood.fits(C)]
sized = pytest.mark.parametrize(("likelihood", "C"), SIZES, ids=[f"{case.name}-{C}" for case, C in SIZES])


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Close beside the largest entry, so that a zero need not be met relatively."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance * (1e-3 + expected.abs().max())


def linearized(case: NetworkCase) -> tuple[nn.Module, Any, list[str], Tensor, Tensor]:
    model, x = case.build(), case.inputs()
    names = reference.names_of(model)
    return model, x, names, *reference.jacobian(model, x, names)


def outputs(n: int, C: int) -> Tensor:
    return 1.5 * torch.randn(n, C, generator=torch.Generator().manual_seed(10 * n + C), dtype=torch.float64)


def random_spd(size: int) -> Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return root @ root.T / size


def varied(size: int) -> Tensor:
    """A prior precision for each weight."""
    return torch.linspace(0.5, 2.0, size, dtype=torch.float64)


# Cases


def test_names_are_unique_and_every_likelihood_is_met() -> None:
    assert len(BY_NAME) == len(NETWORKS)
    assert {likelihood_for(case).name for case in NETWORKS} == {likelihood.name for likelihood in LIKELIHOODS}


@networks
def test_case_is_the_same_at_every_call(case: NetworkCase) -> None:
    before = torch.get_rng_state()
    first, second = case.build(), case.build()
    assert first.training == case.train
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    pairs = zip(reference.tensors_of(case.inputs()), reference.tensors_of(case.inputs()), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert torch.equal(before, torch.get_rng_state())


# Jacobians


@networks
def test_jacobian_by_torch_func(case: NetworkCase) -> None:
    """All data at once: that the model treats them apart is tested along with the derivative."""
    model, x, names, f, J = linearized(case)
    assert J.shape == (reference.size_of(x), case.outputs, len(reference.theta(model, names)))
    twin = reference.evaluated(model)
    close(reference.outputs(twin, x).detach(), f)
    if case.name in NOT_BY_FUNC:
        return
    weights = {name: weight.detach() for name, weight in twin.named_parameters() if name in names}
    spread = x if isinstance(x, dict) and case.name != "dict_whole" else {}
    args = x if isinstance(x, tuple) else () if spread else (x,)

    def of_weights(weights: dict[str, Tensor]) -> Tensor:
        out = torch.func.functional_call(twin, weights, args, spread)
        out = getattr(out, "logits", out)
        return out.reshape(len(f), -1)

    blocks: dict[str, Tensor] = torch.func.jacrev(of_weights)(weights)
    close(torch.cat([blocks[name].reshape(*f.shape, -1) for name in names], 2), J)


@pytest.mark.parametrize("case", [case for case in NETWORKS if not case.stops], ids=lambda case: case.name)
def test_jacobian_by_finite_differences(case: NetworkCase) -> None:
    model, x, names, _, J = linearized(case)
    start, where = reference.theta(model, names), reference.slices(model, names)
    directions = torch.randn(4, len(start), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in names:
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:  # a constant by definition
            directions[:, where[name]].unflatten(1, owner.weight.shape)[:, owner.padding_idx] = 0
    step = 1e-5 * directions
    ahead, behind = (reference.bnn_outputs(model, x, names, start + sign * step) for sign in (1, -1))
    close((ahead - behind) / 2e-5, torch.stack([J @ direction for direction in directions]), 1e-7)


@networks
def test_oracle_leaves_the_model_alone(case: NetworkCase) -> None:
    model, x = case.build(), case.inputs()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [(weight.requires_grad, weight.grad) for weight in model.parameters()]
    reference.jacobian(model, x, reference.names_of(model))
    assert [(weight.requires_grad, weight.grad) for weight in model.parameters()] == flags
    assert all(module.training == case.train for module in model.modules())
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_tied_weight_has_the_sum_of_its_uses() -> None:
    case = BY_NAME["tied_linears"]
    model, x, names, _, J = linearized(case)
    assert names == ["0.weight", "0.bias", "2.bias", "4.weight", "4.bias"]
    loose = case.build()
    loose.get_submodule("2").weight = nn.Parameter(model.get_parameter("0.weight").detach().clone())
    _, apart = reference.jacobian(loose, x, ["0.weight", "2.weight"])
    close(J[..., :16], apart[..., :16] + apart[..., 16:])


def test_float32_models_are_taken_in_float64() -> None:
    case = BY_NAME["mlp_2_hidden"]
    model = case.build().float()
    f, J = reference.jacobian(model, case.inputs().float(), reference.names_of(model))
    assert f.dtype == J.dtype == torch.float64
    assert model.get_parameter("0.weight").dtype == torch.float32


# Likelihoods


def observed(likelihood: LikelihoodCase, f: Tensor) -> Distribution:
    """p(y | f) by torch, with a batch of `[n]`."""
    if likelihood.oracle == "categorical":
        return Categorical(logits=f)
    noise = likelihood.options(f.shape[-1]).get("noise", 1.0)
    mean, log_variance = f.chunk(2, -1) if f.shape[-1] % 2 == 0 else (f, f)
    each: dict[str, Distribution] = {"bernoulli": Bernoulli(logits=f), "poisson": Poisson(f.exp())}
    each["heteroscedastic"] = Normal(mean, (0.5 * log_variance).exp())
    each["gaussian"] = Normal(f, torch.as_tensor(noise, dtype=f.dtype))
    return Independent(each[likelihood.oracle], 1)


@sized
def test_log_prob_residual_and_moments(likelihood: LikelihoodCase, C: int) -> None:
    f, options = outputs(4, C), likelihood.options(C)
    y = likelihood.targets(f)
    law = observed(likelihood, f)
    close(reference.log_prob(likelihood.oracle, y, f, **options), law.log_prob(y))
    f.requires_grad_()
    (gradient,) = torch.autograd.grad(observed(likelihood, f).log_prob(y).sum(), f)
    f = f.detach()
    close(reference.residual(likelihood.oracle, y, f, **options), gradient)
    if likelihood.oracle == "categorical":
        close(reference.mean_of(likelihood.oracle, f), f.softmax(-1))
        return
    close(reference.mean_of(likelihood.oracle, f), law.mean)
    close(reference.variance_of(likelihood.oracle, f, **options), law.variance)


@sized
def test_lam(likelihood: LikelihoodCase, C: int) -> None:
    """The Hessian of torch's log_prob; its mean over y is its mean at one deviation to either side."""
    f, M = outputs(3, C), C // 2
    y = likelihood.targets(f)
    labels = [y, y]
    if likelihood.oracle == "heteroscedastic":
        labels = [f[:, :M] + sign * (0.5 * f[:, M:]).exp() for sign in (1, -1)]
    expected = torch.zeros(3, C, C, dtype=torch.float64)

    def log_prob(y_i: Tensor, f_i: Tensor) -> Tensor:
        return observed(likelihood, f_i).log_prob(y_i)

    for i, label in itertools.product(range(3), labels):
        expected[i] -= torch.func.hessian(partial(log_prob, label[i]))(f[i]) / 2
    close(reference.lam(likelihood.oracle, f, **likelihood.options(C)), expected)


def test_labels_may_leave_out_the_axis_of_one_output() -> None:
    f = outputs(4, 1)
    y = torch.tensor([0, 1, 1, 0])
    for name in ("gaussian", "bernoulli", "poisson"):
        close(reference.log_prob(name, y, f), reference.log_prob(name, y[:, None].double(), f))
        close(reference.residual(name, y, f), reference.residual(name, y[:, None].double(), f))


# Curvature


@pytest.mark.parametrize("likelihood", LIKELIHOODS[:-1], ids=lambda case: case.name)
def test_ggn_is_the_hessian_of_a_linear_model(likelihood: LikelihoodCase) -> None:
    """Not of the heteroscedastic, whose Λ is an expectation over y."""
    model, x, names, f, J = linearized(BY_NAME["linear"])
    options = likelihood.options(2)
    y = likelihood.targets(f)

    def loss(flat: Tensor) -> Tensor:
        weight, bias = flat[:6].reshape(2, 3), flat[6:]
        return -reference.log_prob(likelihood.oracle, y, x @ weight.T + bias, **options).sum()

    H = reference.full_ggn(J, reference.lam(likelihood.oracle, f, **options))
    close(H, torch.func.hessian(loss)(reference.theta(model, names)))
    close(reference.diagonal_ggn(J, reference.lam(likelihood.oracle, f, **options)), H.diagonal())


def blocks_of(H: Tensor, model: nn.Module, names: list[str]) -> Tensor:
    where = reference.slices(model, names)
    return torch.block_diag(*(H[where[name], where[name]] for name in names))


class MeanOverPositions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("mlp_2_hidden", "2"), ("two_position_axes", "fc"), ("inplace_sum", "fc"), ("inplace_relu", "0")],
)
def test_linear_layer_has_its_jacobian_from_inputs_and_outputs(name: str, layer: str) -> None:
    """J = Σ_s D ⊗ a for the weight and Σ_s D for the bias, whatever is then written over the outputs."""
    case = BY_NAME[name]
    model, x = case.build(), case.inputs()
    use = reference.linear_use(model, x, layer)
    _, J = reference.jacobian(model, x, [f"{layer}.weight", f"{layer}.bias"])
    weight = torch.einsum("ncso,nsi->ncoi", use.D, use.a).flatten(2)
    close(torch.cat([weight, use.D.sum(2)], 2), J)


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [("mlp_one_datum", "categorical"), ("deep_linear", "gaussian")],
)
@pytest.mark.parametrize("sharing", ["expand", "reduce", "sum"])
def test_kron_is_the_block_diagonal(name: str, likelihood: str, sharing: str) -> None:
    model, x, names, f, J = linearized(BY_NAME[name])
    Λ = reference.lam(likelihood, f)
    H = blocks_of(reference.full_ggn(J, Λ), model, names)
    close(reference.kron_ggn(model, x, names, Λ, sharing), H)


def test_kron_sharing_is_exact_where_it_should_be() -> None:
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for sharing, model in (
        ("reduce", nn.Sequential(BY_NAME["deep_linear"].build(), MeanOverPositions())),
        ("expand", nn.Sequential(nn.Linear(3, 2), nn.Flatten()).double()),
    ):
        names = reference.names_of(model)
        f, J = reference.jacobian(model, x, names)
        Λ = reference.lam("gaussian", f, 0.7)
        H = blocks_of(reference.full_ggn(J, Λ), model, names)
        close(reference.kron_ggn(model, x, names, Λ, sharing), H)


def test_kron_sum_is_expand_times_the_positions() -> None:
    model, x, _, f, _ = linearized(BY_NAME["positions"])
    Λ = reference.lam("categorical", f)
    expand, total = (reference.kron_ggn(model, x, ["fc.weight"], Λ, sharing) for sharing in ("expand", "sum"))
    close(total, 5 * expand)


def test_kron_bias_is_exact_unless_positions_are_summed_apart() -> None:
    model, x, _, f, _ = linearized(BY_NAME["positions"])
    Λ = reference.lam("categorical", f)
    exact = reference.full_ggn(reference.jacobian(model, x, ["fc.bias"])[1], Λ)
    close(reference.kron_ggn(model, x, ["fc.bias"], Λ, "reduce"), exact)
    use = reference.linear_use(model, x, "fc")
    apart = sum(reference.full_ggn(use.D[:, :, s], Λ) for s in range(5))
    for sharing in ("expand", "sum"):
        close(reference.kron_ggn(model, x, ["fc.bias"], Λ, sharing), torch.as_tensor(apart))


@pytest.mark.parametrize("corrected", [False, True])
def test_kron_precision_adds_a_scalar_prior(corrected: bool) -> None:
    model, x, names, f, J = linearized(BY_NAME["mlp_2_hidden"])
    Λ = reference.lam("categorical", f)
    P = reference.kron_precision(model, x, names, Λ, 0.3, corrected=corrected)
    eye = torch.eye(len(P), dtype=torch.float64)
    close(P - 0.3 * eye, reference.kron_precision(model, x, names, Λ, 0.0, corrected=corrected))
    if corrected:
        close(P.trace(), (blocks_of(reference.full_ggn(J, Λ), model, names) + 0.3 * eye).trace())
    else:
        close(P, reference.kron_ggn(model, x, names, Λ) + 0.3 * eye)


def test_kron_precision_dampened() -> None:
    model, x, _, f, _ = linearized(BY_NAME["mlp_2_hidden"])
    Λ = reference.lam("categorical", f)
    A, G, _ = reference.kron_factors(reference.linear_use(model, x, "2"), Λ)
    P = reference.kron_precision(model, x, ["2.weight"], Λ, 0.09, damping="sqrt")
    H = reference.kron_ggn(model, x, ["2.weight"], Λ)
    eye = partial(torch.eye, dtype=torch.float64)
    close(P, H + 0.3 * (torch.kron(G, eye(6)) + torch.kron(eye(5), A)) + 0.09 * eye(30))


def test_kron_precision_projects_a_prior_for_each_weight() -> None:
    """In the eigenbasis the prior loses what is off its diagonal: it keeps its trace, and commutes with H."""
    model, x, _, f, _ = linearized(BY_NAME["mlp_2_hidden"])
    Λ, d = reference.lam("gaussian", f), varied(18)
    H = reference.kron_ggn(model, x, ["0.weight"], Λ)
    P = reference.kron_precision(model, x, ["0.weight"], Λ, d)
    close((P - H).trace(), d.sum())
    close(P @ H, H @ P)


# Posterior


@pytest.mark.parametrize("noise", [0.7, torch.tensor([0.5, 1.5])])
@pytest.mark.parametrize("prior", [0.8, varied(8)], ids=["scalar", "per weight"])
def test_linear_regression_has_its_closed_form(noise: Any, prior: Any) -> None:
    """log p(y) = log N(y; 0, Φ P0⁻¹ Φᵀ + σ²), whose Laplace approximation at the mode is exact."""
    f, J = linearized(BY_NAME["linear"])[3:]
    y = LIKELIHOODS[0].targets(f)
    Φ, P0 = J.flatten(0, 1), torch.as_tensor(prior, dtype=torch.float64).expand(8)
    variance = (torch.as_tensor(noise, dtype=torch.float64) ** 2).expand(4, 2).reshape(-1)
    total = Φ @ torch.diag(1 / P0) @ Φ.T + torch.diag(variance)
    expected = torch.distributions.MultivariateNormal(torch.zeros(8, dtype=torch.float64), total)

    Λ = reference.lam("gaussian", f, noise)
    precision = reference.posterior_precision(reference.full_ggn(J, Λ), prior)
    mode = torch.linalg.solve(precision, Φ.T @ (y.reshape(-1) / variance))
    log_likelihood = reference.log_prob("gaussian", y, J @ mode, noise).sum()
    evidence = reference.log_evidence(log_likelihood, mode, precision, prior)
    close(evidence, expected.log_prob(y.reshape(-1)))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("prior", [0.8, "per weight"])
def test_posterior_by_woodbury(prior: Any, temperature: float) -> None:
    f, J = linearized(BY_NAME["mlp_2_hidden"])[3:]
    Λ = reference.lam("categorical", f) + 0.1 * torch.eye(2)  # invertible
    prior = varied(J.shape[2]) if prior == "per weight" else prior
    Σ = reference.posterior_covariance(reference.full_ggn(J, Λ), prior, temperature)
    joint = reference.joint_latent_covariance(J, Σ)

    Φ = J.flatten(0, 1)
    K = Φ / prior @ Φ.T
    noise = torch.linalg.inv(torch.block_diag(*Λ))
    close(joint.flatten(2).flatten(0, 1), temperature * (K - K @ torch.linalg.solve(K + noise, K)))
    close(torch.stack([joint[i, :, i] for i in range(len(f))]), reference.latent_covariance(J, Σ))


def test_posterior_of_a_diagonal() -> None:
    H = varied(5)
    close(reference.posterior_covariance(H, 2.0, 0.5), torch.diag(0.5 / (H + 2)))


def test_prior_by_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 2)), nn.Linear(2, 1))
    names = reference.names_of(model)
    given: dict[str, float | Tensor] = {
        "0": 1.0,
        "0.1": 2.0,
        "0.1.bias": torch.tensor([3.0, 4.0]),
        "1": torch.tensor(5.0),
    }
    expected = torch.tensor([1, 1, 1, 2, 2, 3, 4, 5, 5, 5.0], dtype=torch.float64)
    assert torch.equal(reference.prior_vector(model, names, given), expected)
    assert torch.equal(reference.prior_vector(model, names, 2.0), torch.full((10,), 2.0).double())
    assert torch.equal(reference.prior_vector(model, names, expected), expected)


# Predictives


def test_samples_have_the_covariance_asked_for() -> None:
    mean, Σ = varied(4), random_spd(4)
    samples = reference.draw_weights(mean, Σ, 200_000)
    close(samples.mean(0), mean, 0.02)
    close(torch.cov(samples.T), Σ, 0.03)


def test_bnn_is_glm_where_the_model_is_linear() -> None:
    model, x, names, f, J = linearized(BY_NAME["linear"])
    start = reference.theta(model, names)
    samples = reference.draw_weights(start, random_spd(8), 5)
    close(reference.bnn_outputs(model, x, names, samples), reference.glm_outputs(f, J, start, samples))
    close(reference.bnn_outputs(model, x, names, start[None])[0], f)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda case: case.name)
def test_moments_are_those_of_the_mixture(likelihood: LikelihoodCase) -> None:
    """Every label of classes in turn; else the total against E[y²] − E[y]²."""
    f = torch.stack([outputs(n, 2) for n in (3, 3, 3)] + [outputs(3, 2) + 1])
    name, options = likelihood.oracle, likelihood.options(2)
    mean, aleatoric, epistemic = reference.monte_carlo(name, f, **options)
    means, variances = reference.mean_of(name, f), reference.variance_of(name, f, **options)
    close(aleatoric + epistemic, (variances + means**2).mean(0) - mean**2)
    if name in ("categorical", "bernoulli"):
        close(aleatoric + epistemic, mean * (1 - mean))
    if name == "categorical":
        labels = torch.arange(2)[:, None].expand(2, 3)
        p = torch.stack([reference.mixture_log_prob(name, y, f).exp() for y in labels], dim=-1)
        close(p, mean)
        total, expected = reference.entropies(name, f)
        close(total, Categorical(probs=p).entropy())
        close(expected, Categorical(logits=f).entropy().mean(0))
    if name == "bernoulli":
        total, expected = reference.entropies(name, f)
        close(total, Bernoulli(probs=mean).entropy().sum(-1))
        close(expected, Bernoulli(logits=f).entropy().sum(-1).mean(0))
