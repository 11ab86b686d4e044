"""The oracle: slow, dense, float64 and obvious. It knows nothing of the library it checks.

Weights are always in the order of a given list of parameter names, each flattened row-major. Data are looped
over one at a time. f is `[n, C]`, J is `[n, C, P]`, Λ is `[n, C, C]`.

Where autograd and calculus differ, the oracle holds that
- the padding row of an embedding is a constant, and so is whatever the model detaches (as autograd has it);
- `scale_grad_by_freq` is a trick for training and no part of the derivative (as calculus has it).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Precision = float | Tensor | Mapping[str, float | Tensor]


# Models and their inputs


def call(model: nn.Module, x: Any) -> Any:
    """model(x); model(*x) for a tuple; for a dict model(**x) if forward takes its keys, else model(x)."""
    if isinstance(x, tuple):
        return model(*x)
    if isinstance(x, dict):
        try:
            inspect.signature(model.forward).bind(**x)
        except TypeError:
            return model(x)
        return model(**x)
    return model(x)


def outputs(model: nn.Module, x: Any) -> Tensor:
    """The outputs as `[n, C]`: `.logits` if the model returns an object that has them; `[n]` is `[n, 1]`."""
    out = call(model, x)
    out = out if isinstance(out, Tensor) else out.logits
    return out[:, None] if out.ndim == 1 else out


def tensors_of(x: Any) -> list[Tensor]:
    """The tensors of an input, in its own order."""
    if isinstance(x, Tensor):
        return [x]
    return list(x.values()) if isinstance(x, dict) else list(x)


def each_tensor(x: Any, change: Any) -> Any:
    """The same tensor, tuple or dict, with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, dict):
        return {key: change(value) for key, value in x.items()}
    return tuple(change(value) for value in x)


def size_of(x: Any) -> int:
    """The number of data."""
    return len(tensors_of(x)[0])


def rows(x: Any, start: int, stop: int) -> Any:
    """Data start to stop of a tensor, tuple or dict."""
    return each_tensor(x, lambda tensor: tensor[start:stop])


def doubled(x: Any) -> Any:
    """Floating tensors in float64, others as they are."""
    return each_tensor(x, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def evaluated(model: nn.Module) -> nn.Module:
    """A copy of the model in float64 and in evaluation, so that the caller's own is never touched."""
    # torch refuses to copy tensors that autograd made; old-style weight_norm keeps one as an attribute.
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    twin = copy.deepcopy(model, memo).double().eval()
    for module in twin.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.scale_grad_by_freq = False
    return twin


def names_of(model: nn.Module) -> list[str]:
    """Every parameter that is not frozen, once each, in the model's order."""
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def weights_of(model: nn.Module, names: Sequence[str]) -> list[nn.Parameter]:
    """The parameters of these names; a tied one answers to each of its names."""
    all_names = dict(model.named_parameters(remove_duplicate=False))
    return [all_names[name] for name in names]


def theta(model: nn.Module, names: Sequence[str]) -> Tensor:
    """The weights `[P]`."""
    return torch.cat([weight.detach().double().reshape(-1) for weight in weights_of(model, names)])


def slices(model: nn.Module, names: Sequence[str]) -> dict[str, slice]:
    """Where each parameter lies in the flat vector."""
    found, start = {}, 0
    for name, weight in zip(names, weights_of(model, names), strict=True):
        found[name] = slice(start, start + weight.numel())
        start += weight.numel()
    return found


def prior_vector(model: nn.Module, names: Sequence[str], precision: Precision) -> Tensor:
    """The diagonal `[P]` of the prior's precision, from a number, a vector, or a dict by parameter or module.

    In a dict a parameter's own name goes before its module's, and an inner module's before an outer one's.
    """
    total = sum(weight.numel() for weight in weights_of(model, names))
    if not isinstance(precision, Mapping):
        return torch.as_tensor(precision, dtype=torch.float64).expand(total)
    parts = []
    for name, weight in zip(names, weights_of(model, names), strict=True):
        keys = [key for key in precision if name == key or name.startswith(key + ".")]
        value = torch.as_tensor(precision[max(keys, key=len)], dtype=torch.float64)
        parts.append(value.expand(weight.shape).reshape(-1))
    return torch.cat(parts)


def jacobian(model: nn.Module, x: Any, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """f `[n, C]` and J `[n, C, P]`: one datum, one output and one call of autograd at a time."""
    twin, x = evaluated(model), doubled(x)
    weights = [weight.requires_grad_() for weight in weights_of(twin, names)]
    all_f, all_J = [], []
    for n in range(size_of(x)):
        f = outputs(twin, rows(x, n, n + 1))[0]
        J = torch.zeros(len(f), sum(weight.numel() for weight in weights), dtype=torch.float64)
        for c in range(len(f) if f.requires_grad else 0):
            gradients = torch.autograd.grad(f[c], weights, retain_graph=True, allow_unused=True)
            J[c] = torch.cat([flat(g, weight) for g, weight in zip(gradients, weights, strict=True)])
        all_f.append(f.detach())
        all_J.append(J)
    return torch.stack(all_f), torch.stack(all_J)


def flat(gradient: Tensor | None, weight: Tensor) -> Tensor:
    """A gradient as a vector: zero where the weight is not used, dense where an embedding made it sparse."""
    if gradient is None:
        return torch.zeros(weight.numel(), dtype=torch.float64)
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)


# Likelihoods
# By name: gaussian (noise: the standard deviation, one or one an output), bernoulli, categorical, poisson,
# heteroscedastic (f: means, then log variances). y is [n, M], or [n] for [n, 1]; categorical: integer [n].


def targets(likelihood: str, y: Tensor) -> Tensor:
    """y as `[n, M]`, for categorical as it is."""
    return y[:, None].double() if y.ndim == 1 and likelihood != "categorical" else y


def log_prob(likelihood: str, y: Tensor, f: Tensor, noise: float | Tensor = 1.0) -> Tensor:
    """log p(y | f) `[n]`, summed over outputs."""
    y = targets(likelihood, y)
    if likelihood == "gaussian":
        return normal_log_density(y, f, torch.as_tensor(noise, dtype=f.dtype) ** 2)
    if likelihood == "bernoulli":
        return (y * nn.functional.logsigmoid(f) + (1 - y) * nn.functional.logsigmoid(-f)).sum(-1)
    if likelihood == "categorical":
        return torch.stack([f[n, y[n]] - f[n].logsumexp(0) for n in range(len(f))])
    if likelihood == "poisson":
        return (y * f - f.exp() - torch.lgamma(y + 1)).sum(-1)
    if likelihood == "heteroscedastic":
        mean, log_variance = f.chunk(2, -1)
        return normal_log_density(y, mean, log_variance.exp())
    raise ValueError(likelihood)


def normal_log_density(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(y; mean, variance) summed over the last axis."""
    return (-0.5 * (y - mean) ** 2 / variance - 0.5 * torch.log(2 * math.pi * variance)).sum(-1)


def residual(likelihood: str, y: Tensor, f: Tensor, noise: float | Tensor = 1.0) -> Tensor:
    """∂ log p(y | f) / ∂f `[n, C]`."""
    y = targets(likelihood, y)
    if likelihood == "gaussian":
        return (y - f) / torch.as_tensor(noise, dtype=f.dtype) ** 2
    if likelihood == "bernoulli":
        return y - f.sigmoid()
    if likelihood == "categorical":
        return nn.functional.one_hot(y, f.shape[1]) - f.softmax(-1)
    if likelihood == "poisson":
        return y - f.exp()
    if likelihood == "heteroscedastic":
        mean, log_variance = f.chunk(2, -1)
        scaled = (y - mean) * torch.exp(-log_variance)
        return torch.cat([scaled, 0.5 * (y - mean) * scaled - 0.5], -1)
    raise ValueError(likelihood)


def lam(likelihood: str, f: Tensor, noise: float | Tensor = 1.0) -> Tensor:
    """Λ(f) = −∂² log p(y | f) / ∂f² `[n, C, C]`; for heteroscedastic its expectation over y."""
    n, c = f.shape
    Λ = torch.zeros(n, c, c, dtype=f.dtype)
    for i in range(n):
        if likelihood == "gaussian":
            Λ[i] = torch.diag(1 / torch.as_tensor(noise, dtype=f.dtype).expand(c) ** 2)
        elif likelihood == "bernoulli":
            Λ[i] = torch.diag(f[i].sigmoid() * (-f[i]).sigmoid())
        elif likelihood == "categorical":
            p = f[i].softmax(0)
            Λ[i] = torch.diag(p) - torch.outer(p, p)
        elif likelihood == "poisson":
            Λ[i] = torch.diag(f[i].exp())
        elif likelihood == "heteroscedastic":
            of_mean, of_log_variance = torch.exp(-f[i, c // 2 :]), torch.full_like(f[i, c // 2 :], 0.5)
            Λ[i] = torch.diag(torch.cat([of_mean, of_log_variance]))
        else:
            raise ValueError(likelihood)
    return Λ


def mean_of(likelihood: str, f: Tensor) -> Tensor:
    """E[y | f] `[..., n, M]`; for classes the probabilities."""
    if likelihood == "gaussian":
        return f
    if likelihood == "heteroscedastic":
        return f.chunk(2, -1)[0]
    return {"bernoulli": f.sigmoid, "categorical": lambda: f.softmax(-1), "poisson": f.exp}[likelihood]()


def variance_of(likelihood: str, f: Tensor, noise: float | Tensor = 1.0) -> Tensor:
    """Var[y | f] `[..., n, M]`; for classes p(1 − p)."""
    if likelihood == "gaussian":
        return (torch.as_tensor(noise, dtype=f.dtype) ** 2).expand(f.shape)
    if likelihood == "heteroscedastic":
        return f.chunk(2, -1)[1].exp()
    mean = mean_of(likelihood, f)
    return mean if likelihood == "poisson" else mean * (1 - mean)


# Curvature


def full_ggn(J: Tensor, Λ: Tensor) -> Tensor:
    """Σ Jᵀ Λ J over the data `[P, P]`."""
    H = torch.zeros(J.shape[2], J.shape[2], dtype=J.dtype)
    for J_n, Λ_n in zip(J, Λ, strict=True):
        H += J_n.T @ Λ_n @ J_n
    return H


def diagonal_ggn(J: Tensor, Λ: Tensor) -> Tensor:
    """The diagonal of Σ Jᵀ Λ J `[P]`, without forming the matrix."""
    diagonal = torch.zeros(J.shape[2], dtype=J.dtype)
    for J_n, Λ_n in zip(J, Λ, strict=True):
        diagonal += ((Λ_n @ J_n) * J_n).sum(0)
    return diagonal


class LinearUse(NamedTuple):
    """A Linear layer's inputs a `[n, s, i]`, and how f depends on its outputs, D = ∂f/∂out `[n, C, s, o]`."""

    a: Tensor
    D: Tensor


def linear_use(model: nn.Module, x: Any, layer: str) -> LinearUse:
    """For a layer that is called once; all axes of its input between the first and the last are positions."""
    twin, x = evaluated(model), doubled(x)
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen.append((args[0].detach().clone(), out))
        return out.clone()  # what the model then does in place does not reach the one kept

    twin.get_submodule(layer).register_forward_hook(keep)
    all_a, all_D = [], []
    for n in range(size_of(x)):
        f = outputs(twin, rows(x, n, n + 1))[0]
        ((a, out),) = seen
        seen.clear()
        D = [torch.autograd.grad(f[c], out, retain_graph=True)[0] for c in range(len(f))]
        all_a.append(a.reshape(-1, a.shape[-1]))
        all_D.append(torch.stack(D).reshape(len(f), -1, out.shape[-1]))
    return LinearUse(torch.stack(all_a), torch.stack(all_D))


class KronFactors(NamedTuple):
    """The weight's curvature is G ⊗ A (A averaged, G summed), the bias's is B: as if its input were always 1."""

    A: Tensor
    G: Tensor
    B: Tensor


def kron_factors(use: LinearUse, Λ: Tensor, sharing: str = "expand") -> KronFactors:
    """KFAC by the book, for one Linear layer."""
    n, positions, i = use.a.shape
    o = use.D.shape[-1]
    A, G, B = (torch.zeros(size, size, dtype=Λ.dtype) for size in (i, o, o))
    for a, D, Λ_n in zip(use.a, use.D, Λ, strict=True):
        whole = D.sum(1)
        B += whole.T @ Λ_n @ whole
        if sharing == "reduce":
            A += torch.outer(a.mean(0), a.mean(0))
            G += whole.T @ Λ_n @ whole
            continue
        for s in range(positions):
            A += torch.outer(a[s], a[s])
            G += D[:, s].T @ Λ_n @ D[:, s]
    count = n * positions if sharing == "expand" else n
    return KronFactors(A / count, G, B if sharing == "reduce" else G)


def kron_ggn(model: nn.Module, x: Any, names: Sequence[str], Λ: Tensor, sharing: str = "expand") -> Tensor:
    """The block diagonal matrix `[P, P]` of a model whose named parameters all belong to Linear layers."""
    blocks = []
    for name in names:
        layer, _, kind = name.rpartition(".")
        A, G, B = kron_factors(linear_use(model, x, layer), Λ, sharing)
        blocks.append(torch.kron(G, A) if kind == "weight" else B)
    return torch.block_diag(*blocks)


def kron_precision(
    model: nn.Module,
    x: Any,
    names: Sequence[str],
    Λ: Tensor,
    prior: float | Tensor,
    sharing: str = "expand",
    damping: str = "none",
    corrected: bool = False,
) -> Tensor:
    """The posterior precision `[P, P]` under Kron; the named parameters must all belong to Linear layers.

    The prior is projected on each block's eigenbasis: U diag(λ + d̃) Uᵀ, d̃ = diag(Uᵀ diag(d) U). Where
    eigenvalues repeat (as zero does with fewer data than inputs) the basis is not unique: then neither is d̃,
    unless all of d is one number.
    """
    prior = prior_vector(model, names, prior)
    where, blocks = slices(model, names), []
    H = full_ggn(jacobian(model, x, names)[1], Λ) if corrected else None
    for name in names:
        layer, _, kind = name.rpartition(".")
        A, G, B = kron_factors(linear_use(model, x, layer), Λ, sharing)
        d = prior[where[name]]
        if kind == "bias":
            blocks.append(projected(*torch.linalg.eigh(B), d))
        elif damping == "sqrt":
            root = d.unique().item() ** 0.5  # one prior precision a weight matrix, or this fails
            G, A = (factor + root * torch.eye(len(factor), dtype=factor.dtype) for factor in (G, A))
            blocks.append(torch.kron(G, A))
        else:
            (λ_g, U_g), (λ_a, U_a) = torch.linalg.eigh(G), torch.linalg.eigh(A)
            U, λ = torch.kron(U_g, U_a), torch.outer(λ_g, λ_a).reshape(-1)
            if H is not None:
                λ = (U.T @ H[where[name], where[name]] @ U).diagonal()
            blocks.append(projected(λ, U, d))
    return torch.block_diag(*blocks)


def projected(λ: Tensor, U: Tensor, d: Tensor) -> Tensor:
    """U diag(λ + d̃) Uᵀ, d̃ the diagonal of Uᵀ diag(d) U."""
    return U @ torch.diag(λ + (U.T @ torch.diag(d) @ U).diagonal()) @ U.T


# Posterior


def posterior_precision(H: Tensor, prior: float | Tensor) -> Tensor:
    """H + P0 `[P, P]`; H `[P, P]` or its diagonal `[P]`, the prior a number or its diagonal `[P]`."""
    H = torch.diag(H) if H.ndim == 1 else H
    return H + torch.diag(torch.as_tensor(prior, dtype=H.dtype).expand(len(H)))


def posterior_covariance(H: Tensor, prior: float | Tensor, temperature: float = 1.0) -> Tensor:
    """temperature · (H + P0)⁻¹ `[P, P]`."""
    covariance = torch.linalg.inv(posterior_precision(H, prior))
    return temperature * (covariance + covariance.T) / 2


def latent_covariance(J: Tensor, covariance: Tensor) -> Tensor:
    """J Σ Jᵀ of each input `[n, C, C]`."""
    return torch.stack([J_n @ covariance @ J_n.T for J_n in J])


def joint_latent_covariance(J: Tensor, covariance: Tensor) -> Tensor:
    """J Σ Jᵀ over all inputs `[n, C, n, C]`."""
    n, c, _ = J.shape
    joint = torch.zeros(n, c, n, c, dtype=J.dtype)
    for i in range(n):
        for j in range(n):
            joint[i, :, j] = J[i] @ covariance @ J[j].T
    return joint


def log_evidence(log_likelihood: Tensor, weights: Tensor, precision: Tensor, prior: float | Tensor) -> Tensor:
    """Laplace's log p(D) from Σ log p(y | f*), θ* `[P]`, H + P0 `[P, P]` and P0; differentiable in them."""
    prior = torch.as_tensor(prior, dtype=weights.dtype).expand(weights.shape)
    fit = log_likelihood - 0.5 * (weights * prior * weights).sum()
    return fit - 0.5 * torch.linalg.slogdet(precision).logabsdet + 0.5 * prior.log().sum()


# Predictives by brute force


def draw_weights(weights: Tensor, covariance: Tensor, count: int, seed: int = 0) -> Tensor:
    """Samples of N(θ*, Σ) `[count, P]`."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, len(weights), generator=generator, dtype=weights.dtype)
    return weights + noise @ torch.linalg.cholesky(covariance).T


def bnn_outputs(model: nn.Module, x: Any, names: Sequence[str], samples: Tensor) -> Tensor:
    """f(x, θ_k) `[k, n, C]`, by writing each sample into a copy of the model."""
    twin, x, drawn = evaluated(model), doubled(x), []
    where = slices(twin, names)
    with torch.no_grad():
        for sample in samples:
            for name, weight in zip(names, weights_of(twin, names), strict=True):
                weight.copy_(sample[where[name]].reshape(weight.shape))
            drawn.append(outputs(twin, x))
    return torch.stack(drawn)


def glm_outputs(f: Tensor, J: Tensor, weights: Tensor, samples: Tensor) -> Tensor:
    """f + J (θ_k − θ*) `[k, n, C]`."""
    return torch.stack([f + J @ (sample - weights) for sample in samples])


class Moments(NamedTuple):
    """E[y], E[Var[y | f]] and Var[E[y | f]], each `[n, M]`."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def monte_carlo(likelihood: str, f: Tensor, noise: float | Tensor = 1.0) -> Moments:
    """The moments of y under equally likely f `[k, n, C]`."""
    means, variances = mean_of(likelihood, f), variance_of(likelihood, f, noise)
    return Moments(means.mean(0), variances.mean(0), means.var(0, correction=0))


def mixture_log_prob(likelihood: str, y: Tensor, f: Tensor, noise: float | Tensor = 1.0) -> Tensor:
    """log of the average of p(y | f_k) over f `[k, n, C]`, `[n]`."""
    each = torch.stack([log_prob(likelihood, y, f_k, noise) for f_k in f])
    return each.logsumexp(0) - math.log(len(f))


def entropies(likelihood: str, f: Tensor) -> tuple[Tensor, Tensor]:
    """For classes: the entropy of the averaged p(y | f_k), and the average of their entropies, both `[n]`."""
    p = mean_of(likelihood, f)
    if likelihood == "bernoulli":
        return binary_entropy(p.mean(0)), binary_entropy(p).mean(0)
    return torch.special.entr(p.mean(0)).sum(-1), torch.special.entr(p).sum(-1).mean(0)


def binary_entropy(p: Tensor) -> Tensor:
    """The entropy of independent labels, summed over the last axis."""
    return (torch.special.entr(p) + torch.special.entr(1 - p)).sum(-1)
