"""Hamiltonian Monte Carlo over all weights of a small network.

By Pyro's NUTS: of the well-kept libraries the one that runs on torch, so that it samples the very network it is given.
NumPyro and blackjax would want it written again in JAX. Pyro is imported only here, when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from linlap.baselines.ascent import Tick, check_whole, ticking
from linlap.baselines.stacks import Batch, Problem, Stack, problems_of, seeded
from linlap.baselines.train import AnyPrior
from linlap.checks import check_seed
from linlap.errors import InputError, LinlapError
from linlap.likelihoods import Likelihood
from linlap.network.inputs import cat, map_tensors, take
from linlap.posteriors.drawn import Diagnostics, SamplePosterior
from linlap.seeds import generator_for
from linlap.types import Inputs

_LOOKED_AT = 100
"""Training inputs whose outputs are compared between chains."""


def hmc(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    prior: AnyPrior = 1.0,
    *,
    samples: int = 2500,
    chains: int = 4,
    warmup: int = 500,
    seed: int = 0,
    progress: bool | Tick = True,
) -> SamplePosterior:
    """`samples` weight vectors of the exact posterior from each of some Markov chains: the No-U-Turn sampler.

    For networks of up to some thousand weights and data. Each chain starts anew at a draw from the prior, its
    deviations at most 1, and adapts its step size and a diagonal metric during the `warmup`, which is thrown away;
    the model's own weights play no part. `posterior.diagnostics` says how well the chains agree: look at it first.
    """
    for value, name, example in ((samples, "samples", 2500), (chains, "chains", 4), (warmup, "warmup", 500)):
        check_whole(value, name, example)
    if samples < 4:
        raise InputError(f"samples={samples}; pass at least 4, which diagnostics take.")
    check_seed(seed)
    sampler = _pyro()
    if isinstance(model, list | tuple):
        raise InputError("model is a list; ll.hmc samples one network at a time: call it for each.")
    (problem,) = problems_of(model, data, likelihood, prior, tempered=False)
    x, y = _whole(problem, likelihood)
    density = _Density.of(problem, likelihood, x, y)
    found = []
    with ticking(progress, chains * (samples + warmup), "sampling") as tick:
        for chain in range(chains):
            start = _start(problem, seed, chain)
            with seeded(generator_for(seed, chain).initial_seed(), start.device):
                found.append(_chain(sampler, density, start, samples, warmup, tick))
    draws = torch.stack([chain.draws for chain in found])
    posterior = SamplePosterior(problem.network, likelihood, draws.flatten(0, 1), chains)
    return _diagnosed(posterior, found, take(x, 0, _LOOKED_AT))


@dataclass(frozen=True, eq=False)
class _Chain:
    """Draws `[samples, P]`, and what the sampler says of them."""

    draws: Tensor
    divergences: int
    acceptance: float


def _pyro() -> Any:
    try:
        import pyro.infer.mcmc as sampler
    except ImportError as error:
        raise LinlapError("ll.hmc needs Pyro, which is not installed; run pip install 'linlap[hmc]'.") from error
    return sampler


def _start(problem: Problem, seed: int, chain: int) -> Tensor:
    like = problem.network.vector()
    noise = torch.randn(len(like), generator=generator_for(seed, chain), dtype=torch.float64).to(like)
    return noise * problem.precision.rsqrt().clamp_max(1.0)


def _whole(problem: Problem, likelihood: Likelihood) -> tuple[Inputs, Tensor]:
    """All data at once, also of a loader."""
    parts: list[Batch] = []
    for part in Stack([problem], [0], likelihood).batches(None, 0):
        parts.append(part)
        if sum(batch.y.shape[1] for batch in parts) >= problem.total:
            break
    x = cat([map_tensors(part.x, lambda t: t[0]) for part in parts])
    return x, torch.cat([part.y[0] for part in parts])


@dataclass(frozen=True, eq=False)
class _Density:
    """A function of weights with its slope: `run` gives the slope `[P]` and the value at once."""

    run: Callable[[Tensor], tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, problem: Problem, likelihood: Likelihood, x: Inputs, y: Tensor) -> _Density:
        """The log joint. A small network's own operations take a fraction of the time that autograd takes to lay them
        out anew, so they are laid out once; the result is held against autograd's where it was not laid out.
        """
        network, precision = problem.network, problem.precision

        def value(theta: Tensor) -> Tensor:
            f = network.outputs_at(network.named(theta), x)
            return likelihood.log_prob(y, f).sum() - 0.5 * (precision * theta * theta).sum()

        plain, like = torch.func.grad_and_value(value), network.vector()
        try:
            laid_out = make_fx(plain)(like.clone())
            agrees = all(
                torch.allclose(a, b, rtol=1e-4)
                for theta in (like + 0.3, 0.5 - 2 * like)
                for a, b in zip(laid_out(theta), plain(theta), strict=True)
            )
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            agrees = False
        return cls(laid_out if agrees else plain)

    def energy(self, named: dict[str, Tensor]) -> Tensor:
        result: Tensor = _Energy.apply(named["theta"], self.run)
        return result


class _Energy(torch.autograd.Function):
    """The negative of a density, with the slope that came with it."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, run: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        slope, value = run(theta.detach())
        ctx.save_for_backward(slope)
        return -value

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return -above * slope, None


def _chain(sampler: Any, density: _Density, start: Tensor, samples: int, warmup: int, tick: Tick) -> _Chain:
    chain = sampler.MCMC(
        sampler.NUTS(potential_fn=density.energy),
        samples,
        warmup,
        initial_params={"theta": start},
        hook_fn=lambda *_: tick(),
        disable_progbar=True,
    )
    chain.run()
    told = chain.diagnostics()
    (divergences,), (acceptance,) = told["divergences"].values(), told["acceptance rate"].values()
    return _Chain(chain.get_samples()["theta"].detach(), len(divergences), float(acceptance))


def _diagnosed(posterior: SamplePosterior, found: list[_Chain], x: Any) -> SamplePosterior:
    from pyro.ops.stats import effective_sample_size, split_gelman_rubin

    weights = torch.stack([chain.draws for chain in found]).double()
    outputs = posterior.outputs(x).double().unflatten(0, weights.shape[:2])
    diagnostics = Diagnostics(
        split_gelman_rubin(weights),
        effective_sample_size(weights),
        split_gelman_rubin(outputs),
        effective_sample_size(outputs),
        sum(chain.divergences for chain in found),
        torch.tensor([chain.acceptance for chain in found]),
    )
    return replace(posterior, diagnostics=diagnostics)
