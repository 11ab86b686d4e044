"""Natural gradients without stored Jacobians: each step one jvp, one vjp and a few seeds of curvature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap import tree
from linlap.curvature import Curvature, Diagonal, Kron, Totals
from linlap.data import Batches, as_batches
from linlap.errors import NotFiniteError
from linlap.jacobian import Jacobian
from linlap.linalg import BlockDiagonal
from linlap.network import Network
from linlap.network.inputs import count, take
from linlap.posteriors import Refinement, WeightPosterior
from linlap.refine.climb import Plan, climb
from linlap.refine.minibatches import Batch
from linlap.refine.problem import check_number, prior_vector
from linlap.refine.results import laplace_at
from linlap.types import Inputs

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class State:
    """q(θ) = N(θ* + shift, (H + P0)⁻¹), and an estimate of the ELBO after each step."""

    shift: Tensor
    curvature: Curvature
    objective: Tensor


@dataclass(frozen=True)
class _OneBatch:
    """A sweep over data whose Jacobian, seeded, is there already."""

    jacobian: Jacobian
    totals: Totals

    @property
    def shapes(self) -> Any:
        return self.jacobian.shapes

    @property
    def like(self) -> Tensor:
        return self.jacobian.like

    def sum(self, measure: Callable[[Jacobian], T], goal: str) -> T:
        return measure(self.jacobian)

    def product(self, v: Tensor, goal: str) -> Tensor:
        return self.jacobian.vjp(self.jacobian.jvp(v.unsqueeze(0))[0])


@dataclass(frozen=True, eq=False)
class Stream:
    """Steps of natural gradient for one posterior, whose structure's curvatures can be averaged."""

    posterior: WeightPosterior
    plan: Plan
    samples: int

    @property
    def network(self) -> Network:
        return self.posterior.network

    def advance(self, state: State, batch: Batch) -> State:
        """One step on a minibatch, which stands for all data."""
        (x, y), rate, prior = batch, self.plan.rate, self.posterior.prior
        share = self.posterior.curvature.totals.count / count(x)
        step = len(state.objective)
        generator = self.plan.generator(step, self.network.device)
        before = state.curvature.precision(prior)
        met = _sum([self._meet(state.shift, before, x, y, generator) for _ in range(self.samples)])
        share_each = share / self.samples
        d, theta = prior_vector(self.posterior), self.network.vector().double()
        gradient = share_each * met.gradient - d * (theta + state.shift)
        curvature = state.curvature.blended(met.curvature, rate, share_each)
        after = curvature.precision(prior)
        shift = state.shift + rate * after.solve(gradient)
        if not (torch.isfinite(shift).all() and torch.isfinite(gradient).all()):
            raise NotFiniteError(
                f"step {step + 1} of the refinement ran to numbers that are not finite; pass a smaller rate (it was "
                f"{rate:g}), or a larger prior precision."
            )
        elbo = share_each * met.fit - divergence(after, d, theta + shift)
        return State(shift, curvature, torch.cat([state.objective, elbo.reshape(1)]))

    def _meet(self, shift: Tensor, operator: BlockDiagonal, x: Inputs, y: Tensor, generator: torch.Generator) -> _Met:
        """What a minibatch says at one sample of the weights, in parts that memory holds."""
        network = self.network
        noise = torch.randn(network.size, generator=generator, dtype=torch.float64, device=network.device)
        moved = network.named((shift + operator.inverse_sqrt(noise)).to(network.dtype))
        size = network.batch_for(x, seeds=self.plan.seeds)
        starts = range(0, count(x), size)
        return _sum(
            [self._part(take(x, start, start + size), y[start : start + size], moved, generator) for start in starts]
        )

    def _part(self, x: Inputs, y: Tensor, moved: dict[str, Tensor], generator: torch.Generator) -> _Met:
        network, likelihood = self.network, self.posterior.likelihood
        move = network.jvp(x, moved)
        there: list[Tensor] = []

        def seeds(f: Tensor) -> Tensor:
            there.append(f + move)
            return _columns(likelihood.hessian_sqrt(there[0]), self.plan.seeds, generator)

        lin = network.linearize(x, seeds, once=True)
        f = there[0]
        part = _OneBatch(lin.jacobian, Totals(0, 0.0))
        curvature = self.posterior.structure.fit_part(part, self.posterior.curvature)
        y = likelihood.prepare(y, f)
        back = network.vjp(x, likelihood.residual(y, f))
        gradient = torch.cat([back[name].flatten() for name in network.names]).double()
        return _Met(curvature, gradient, likelihood.log_prob(y, f).double().sum())


@dataclass(frozen=True, eq=False)
class _Met:
    """What a minibatch says at one sample: Σ Jᵀ Λ J, Σ Jᵀ r `[P]`, Σ log p(y | f)."""

    curvature: Curvature
    gradient: Tensor
    fit: Tensor


def _sum(parts: list[T]) -> T:
    total = parts[0]
    for part in parts[1:]:
        total = tree.add(total, part)
    return total


def _columns(root: Tensor, seeds: int | None, generator: torch.Generator) -> Tensor:
    """Seeds `[n, r, C]`: the columns of S, or random combinations of them."""
    if seeds is None or seeds >= root.shape[-1]:
        return root.mT
    shape = (root.shape[0], root.shape[-1], seeds)
    signs = torch.randint(0, 2, shape, generator=generator, device=root.device).to(root.dtype) * 2 - 1
    return (root @ signs).mT / seeds**0.5


def divergence(operator: BlockDiagonal, d: Tensor, mean: Tensor) -> Tensor:
    """KL(q ‖ prior) for a precision, up to rounding."""
    trace = (d * operator.variance()).sum()
    return 0.5 * (trace + (d * mean.square()).sum() - len(d) + operator.logdet() - d.log().sum())


def stream(
    posterior: WeightPosterior,
    data: Any,
    plan: Plan,
    *,
    kron: bool,
    samples: int,
    patience: int | None,
    progress: bool,
) -> WeightPosterior:
    """Natural-gradient steps on minibatches, then the totals at the mean in one pass."""
    batches = as_batches(data, plan.size, posterior.network.device)
    start = _suited(posterior, kron, batches, plan.seeds, progress)
    shift = start.mean - start.network.vector().double()
    state = climb(
        plan,
        start,
        data,
        State(shift, start.curvature, shift.new_zeros(0)),
        Stream(start, plan, samples).advance,
        settings=(kron, samples),
        settled=lambda state: patience is not None and _stalled(state.objective, patience),
        progress=progress,
    )
    fit = log_likelihood_at(start, state.shift, batches, progress)
    totals = Totals(start.curvature.totals.count, fit)
    method = f"NaturalGradient({'kron' if kron else 'diagonal'})"
    settled = None if patience is None else len(state.objective) < plan.steps
    record = Refinement(method, len(state.objective), state.objective, None, settled)
    return replace(start, curvature=state.curvature.with_totals(totals), shift=state.shift, refinement=record)


def _stalled(elbo: Tensor, patience: int) -> bool:
    """Whether the mean of the last estimates is no better than that of as many before: one alone is mostly noise."""
    if len(elbo) < 2 * patience:
        return False
    return bool(elbo[-patience:].mean() <= elbo[-2 * patience : -patience].mean())


def _suited(
    posterior: WeightPosterior, kron: bool, batches: Batches, seeds: int | None, progress: bool
) -> WeightPosterior:
    """The posterior with a curvature that can be averaged, fitted at its mean if it has another."""
    check_number(posterior, sum(count(x) for x, _ in batches))
    structure = posterior.structure
    if kron and not isinstance(structure, Kron):
        structure = Kron()
    elif kron and isinstance(structure, Kron) and structure.corrected:
        structure = replace(structure, corrected=False)
    elif not kron and not isinstance(structure, Diagonal):
        structure = Diagonal()
    if structure == posterior.structure:
        return posterior
    shift = posterior.mean - posterior.network.vector().double()
    return laplace_at(replace(posterior, structure=structure), shift, batches, seeds, progress)


def log_likelihood_at(posterior: WeightPosterior, shift: Tensor, batches: Batches, progress: bool) -> float:
    """Σ log p(y | f_lin) over data."""
    likelihood = posterior.likelihood
    parts = at_mean(posterior, shift, batches, progress)
    return float(sum(float(likelihood.log_prob(y, f).double().sum()) for _, y, f in parts))


def at_mean(
    posterior: WeightPosterior, shift: Tensor, batches: Batches, progress: bool
) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
    """For each batch x, the prepared y, and f_lin at θ* + shift."""
    network = posterior.network
    moved = network.named(shift.to(network.dtype))
    for x, y in tqdm(batches, "at the mean", batches.length, leave=False, delay=1.0, disable=not progress):
        f = network.outputs(x) + network.jvp(x, moved)
        yield x, posterior.likelihood.prepare(y, f), f
