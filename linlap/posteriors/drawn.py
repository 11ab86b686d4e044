"""A posterior that is known by weights drawn from it, or by the members of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.posteriors.weight import check_count
from linlap.types import Inputs, Params

_AT_ONCE = 64
"""Weight vectors that the network runs with in one go."""


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How far Markov chains can be trusted: split R-hat (near 1), and effective sample sizes.

    Both for each weight `[P]`, and for outputs f(x) at some training inputs `[n, C]`. Networks compute the same with
    many weights, so that chains may well agree about f where they do not about weights. `divergences` counts the
    transitions that left the density's typical set; `acceptance` is each chain's mean `[chains]`.
    """

    r_hat: Tensor
    effective: Tensor
    r_hat_outputs: Tensor
    effective_outputs: Tensor
    divergences: int
    acceptance: Tensor

    def __repr__(self) -> str:
        sides = (("weights", self.r_hat, self.effective), ("outputs", self.r_hat_outputs, self.effective_outputs))
        told = [
            f"{what}: R-hat up to {float(r_hat.max()):.3f}, effective samples from {float(effective.min()):.0f}"
            for what, r_hat, effective in sides
        ]
        return "; ".join([*told, f"{self.divergences} divergences"])


@dataclass(frozen=True, eq=False)
class SamplePosterior:
    """Equally likely weights `draws` `[S, P]` of a network; all other weights and buffers are the network's own.

    For `ll.BNN`, which averages over all of them unless told otherwise. Those of `chains` Markov chains follow each
    other, chain by chain; an ensemble has no `diagnostics`.
    """

    network: Network
    likelihood: Likelihood
    draws: Tensor
    chains: int = 1
    diagnostics: Diagnostics | None = None

    @property
    def mean(self) -> Tensor:
        """`[P]`, in float64."""
        return self.draws.double().mean(0)

    def sample(self, k: int, generator: torch.Generator | None = None) -> Params:
        """k of the weight vectors, drawn with replacement, by parameter name, each `[k, *shape]`."""
        check_count(k)
        device = self.draws.device
        return self.network.named(self.draws[torch.randint(len(self.draws), (k,), generator=generator, device=device)])

    def variance(self) -> Params:
        """Marginal variances of the weights, by parameter name."""
        return self.network.named(self.draws.var(0, correction=0))

    def outputs(self, x: Inputs, k: int | None = None) -> Tensor:
        """f(x; θ_s) of all weight vectors `[S, n, C]`, or of k spread evenly over them."""
        draws = self.draws
        if k is not None and k < len(draws):
            draws = draws[torch.linspace(0, len(draws) - 1, k, device=draws.device).round().long()]
        self.network.outputs(x)  # says what is wrong with x, which calls with other weights do not

        def at(theta: Tensor) -> Tensor:
            return self.network.outputs_at(self.network.named(theta), x)

        with torch.no_grad():
            first = at(draws[0])
            try:
                together = vmap(at)(draws[:2])
            except (RuntimeError, ValueError, TypeError, NotImplementedError):
                return torch.stack([at(theta) for theta in draws])
            tolerance = 1e-8 if first.dtype == torch.float64 else 1e-3
            if not torch.allclose(together[0], first, rtol=tolerance, atol=tolerance):
                return torch.stack([at(theta) for theta in draws])
            return torch.cat([vmap(at)(part) for part in draws.split(_AT_ONCE)])

    def __repr__(self) -> str:
        return (
            f"SamplePosterior({type(self.likelihood).__name__}, {self.network.size} weights, {len(self.draws)} draws"
            + (f" of {self.chains} chains; {self.diagnostics!r})" if self.diagnostics else ")")
        )
