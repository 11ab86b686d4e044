"""Variational inference in a stored linear model: natural-gradient steps and the bound they climb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linlap.errors import NotFiniteError
from linlap.integrators.expected import expected_log_prob
from linlap.refine.spaces import Factor, Space
from linlap.seeds import generator_for
from linlap.types import Gaussian

Noise = Callable[[int], tuple[Tensor, Tensor]]
"""For a step the standard normal numbers of its samples: `[samples, P]` and `[samples, N, C]`."""


@dataclass(frozen=True, eq=False)
class State:
    """q(θ) after some steps: coordinates of its mean, L `[N, C, C]` of its precision Jᵀ L J + D, and its factor."""

    mean: Tensor
    blocks: Tensor
    factor: Factor
    step: int = 0


def initial(space: Space) -> State:
    """Laplace at the problem's start."""
    mean = space.start()
    blocks = space.problem.blocks(space.outputs(mean))
    return State(mean, blocks, space.factor(blocks))


def advance(space: Space, state: State, rate: float, noise: Noise) -> State:
    """One step: L moves towards Λ at samples of f, then the mean along its natural gradient there."""
    problem = space.problem
    centre = space.outputs(state.mean)
    samples = [centre + space.deviations(state.factor, *pair) for pair in zip(*noise(state.step), strict=True)]
    blocks = torch.lerp(state.blocks, _averaged(problem.blocks, samples), rate)
    residual = _averaged(problem.residual, samples)
    if not (torch.isfinite(blocks).all() and torch.isfinite(residual).all()):
        raise NotFiniteError(
            f"step {state.step + 1} of the refinement met outputs whose likelihood is not finite; pass a smaller rate, "
            "or a larger prior precision."
        )
    factor = space.factor(blocks)
    mean = state.mean + rate * space.direction(state.mean, factor, residual)
    return replace(state, mean=mean, blocks=blocks, factor=factor, step=state.step + 1)


def _averaged(change: Callable[[Tensor], Tensor], samples: list[Tensor]) -> Tensor:
    total = change(samples[0])
    for sample in samples[1:]:
        total = total + change(sample)
    return total / len(samples)


def elbo(space: Space, state: State) -> Tensor:
    """E_q[log p(y | f)] − KL(q ‖ prior) `[…]`, exact up to the expectation of the likelihood."""
    problem = space.problem
    f, cov = space.outputs(state.mean), space.marginals(state.factor)
    axes = f.ndim - 1
    law = Gaussian(f.flatten(0, axes - 1), cov.flatten(0, axes - 1))
    sides = f.shape[: axes - 1].numel()
    each = expected_log_prob(problem.likelihood, problem.y.flatten(0, axes - 1), law, sides)
    return each.view(f.shape[:-1]).sum(-1) - divergence(space, state, cov)


def divergence(space: Space, state: State, cov: Tensor) -> Tensor:
    """KL(q ‖ prior): tr D Σ − P is −tr L J Σ Jᵀ where the precision is Jᵀ L J + D, exactly or by its diagonal."""
    excess = (state.blocks * cov).sum((-3, -2, -1))
    return 0.5 * (space.prior_term(state.mean) + space.logdet(state.factor) - excess)


def standard_noise(space: Space, samples: int, seed: int) -> Noise:
    """Numbers that depend on the step, not on what came before; problems side by side share them."""
    p = space.problem
    device, shapes = p.theta.device, ((samples, p.size), (samples, *p.f.shape[-2:]))

    def noise(step: int) -> tuple[Tensor, Tensor]:
        generator = generator_for(seed, step, device)
        first, second = (torch.randn(s, generator=generator, dtype=torch.float64, device=device) for s in shapes)
        return first, second

    return noise
