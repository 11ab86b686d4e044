"""Methods in the linear model at the trained weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from experiments.common.cells import Measured, Tick
from experiments.uci.case import Case, Part
from experiments.uci.linear import Fitted, log_evidence
from experiments.uci.predict import bnn, glm, tempered
from experiments.uci.predictions import Predictions
from experiments.uci.scores import least
from experiments.uci.spaces import LayeredDiagonal, quicker
from linlap.refine.elbo import advance, initial, standard_noise
from linlap.refine.problem import Problem
from linlap.refine.spaces import FunctionSpace, Space, cheapest
from linlap.types import Gaussian

_KERNEL_UP_TO = 3000  # rows N·C of coupled outputs; a longer kernel is computed over weights, with the same result


def laplace(case: Case, tick: Tick) -> Measured:
    """The network alone, and Laplace at its weights: GLM with all covariances and with their diagonal, BNN."""
    found, likelihood, samples = Predictions(case.splits, case.config), case.splits.likelihood, case.config.samples
    evidence = []
    drawn = 8.0 * samples * (4 * case.networks.theta.shape[1] + 3 * case.x_new.shape[1] * case.splits.of.outputs)
    for part in _parts(case, tick, drawn):
        full = Fitted.laplace(quicker(part.problem, part.layers, 1))
        diagonal = Fitted.laplace(LayeredDiagonal(part.problem, part.layers))
        found.add("map", part.f)
        found.add("glm_full", glm(likelihood, full.latent(part.J, part.f), samples))
        found.add("glm_diag", glm(likelihood, diagonal.latent(part.J, part.f), samples))
        e = full.sampled(samples, _generator(case)).float()
        found.add("bnn_full", bnn(likelihood, part.networks.float(), e, part.x.float()))
        evidence.append(log_evidence(full))
    found.add("temperature", tempered(case.splits, found.whole("map")))
    best = least(-torch.cat(evidence).view(len(case.config.splits), -1).cpu().numpy())
    return found.measured({"glm_evidence": ("glm_full", best)})


def refine_full(case: Case, tick: Tick) -> Measured:
    """Variational inference in the linear model, from Laplace, with all covariances."""
    config = case.config

    def space_of(part: Part) -> Space:
        return quicker(part.problem, part.layers, config.refine_steps)

    return _refined(case, tick, "glm_refine_full", space_of, config.refine_rate)


def refine_diagonal(case: Case, tick: Tick) -> Measured:
    """The same with independent weights."""
    rate = case.config.refine_diagonal_rate
    return _refined(case, tick, "glm_refine_diag", lambda part: LayeredDiagonal(part.problem, part.layers), rate)


def _refined(case: Case, tick: Tick, method: str, space_of: Callable[[Part], Space], rate: float) -> Measured:
    found, config = Predictions(case.splits, case.config), case.config
    for part in _parts(case, tick):
        fitted = climbed(space_of(part), config.refine_steps, rate)
        found.add(method, glm(case.splits.likelihood, fitted.latent(part.J, part.f), config.samples))
    return found.measured()


def climbed(space: Space, steps: int, rate: float) -> Fitted:
    """Natural-gradient steps with one sample each."""
    state, noise = initial(space), standard_noise(space, 1, 0)
    for _ in range(steps):
        state = advance(space, state, rate, noise)
    return Fitted(space, state.mean, state.factor)


def processes(case: Case, tick: Tick) -> Measured:
    """The same linear models as Gaussian processes over all data, outputs coupled, or each by itself."""
    found, likelihood, samples = Predictions(case.splits, case.config), case.splits.likelihood, case.config.samples
    for part in _parts(case, tick):
        small = part.problem.rows <= _KERNEL_UP_TO
        space = FunctionSpace(part.problem) if small else quicker(part.problem, part.layers, 1)
        found.add("gp_coupled", glm(likelihood, Fitted.laplace(space).latent(part.J, part.f), samples))
        found.add("gp_independent", glm(likelihood, independent(part), samples))
    return found.measured()


def independent(part: Part) -> Gaussian:
    """The law of f with a process for each output, which knows the diagonal of Λ alone: variances `[M, n, C]`."""
    p, c = part.problem, part.f.shape[-1]
    blocks = p.likelihood.variance_of(p.f)
    variances = []
    for output in range(c):
        one = slice(output, output + 1)
        alone = Problem(p.likelihood, p.J[:, output::c], p.f[..., one], p.y, p.theta, p.d, p.start)
        fitted = Fitted.laplace(cheapest(alone, 1), blocks[..., one].unsqueeze(-1))
        variances.append(fitted.latent(part.J[:, output::c], part.f[..., one]).cov[..., 0, 0])
    return Gaussian(part.f, torch.stack(variances, -1))


def _parts(case: Case, tick: Tick, extra: float = 0.0) -> Iterator[Part]:
    """A few networks at a time; `extra` bytes each besides their linear models."""
    done = 0
    for part in case.parts(extra):
        tick(f"networks {done + 1}–{done + len(part.networks)} of {len(case.networks)}")
        yield part
        done += len(part.networks)


def _generator(case: Case) -> torch.Generator:
    return torch.Generator(case.device).manual_seed(0)
