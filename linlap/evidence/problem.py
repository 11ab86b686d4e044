"""The log evidence as a function of logarithms of prior precisions and noise factors, for each kind of posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from linlap.curvature import Curvature, Full, Spectrum, Totals, as_matrix
from linlap.errors import InputError
from linlap.evidence.descent import Local
from linlap.evidence.determinants import AutomaticLogDet, LogDet, Terms, log_det, under_factors
from linlap.evidence.groups import Groups, Over
from linlap.evidence.noise import Fit, Noise, require_gaussian, under_noise
from linlap.evidence.outputs import by_output
from linlap.linalg import symmetric
from linlap.posteriors import FunctionPosterior, WeightPosterior
from linlap.posteriors.points import root_of
from linlap.prior import Prior

Posterior = WeightPosterior | FunctionPosterior


@dataclass(frozen=True, eq=False)
class Problem:
    """log p(D) = fit(s) − ½ (Σ_g squares_g e^{u_g} − sizes_g u_g + log det), concave in (u, s).

    `squares` `[k]` are sums of squares of the mean by group, `sizes` `[k]` what log det P0 counts of them; `build`
    makes the posterior with a prior, for noise factors `[m]`, with the log likelihood under that noise.
    """

    groups: Groups
    fit: Fit
    squares: Tensor
    sizes: Tensor
    log_det: LogDet
    build: Callable[[Prior, Tensor, float], Any]

    @property
    def k(self) -> int:
        return len(self.squares)

    def loss(self, x: Tensor) -> Local:
        """−log p(D) at u and s joined."""
        u, s = x[: self.k], x[self.k :]
        penalty, misfit = u.exp() * self.squares, s.exp() * self.fit.squares
        part = self.log_det(u, s)
        plain = torch.cat([penalty - self.sizes, misfit - self.fit.numbers])
        value = 0.5 * (float((penalty - self.sizes * u).sum()) + part.value) - self.fit.log_likelihood(s)
        hessian = None if part.hessian is None else part.hessian.half_with(torch.cat([penalty, misfit]))
        return Local(value, 0.5 * (plain + part.gradient), hessian)

    def posterior(self, x: Tensor, temperature: float | Tensor) -> Any:
        """The posterior with these precisions and this noise."""
        u, s = x[: self.k], x[self.k :]
        prior = self.groups.chosen(u.exp(), temperature)
        return self.build(prior, s.exp(), self.fit.log_likelihood(s))


def of_weights(posterior: WeightPosterior, over: Over, noise: Noise | None, data: Any, batch_size: int) -> Problem:
    if noise == "output" and isinstance(posterior.structure, Full):
        posterior = replace(posterior, curvature=as_matrix(posterior.curvature))
    curvature, network, device = posterior.curvature, posterior.network, posterior.network.device
    groups = Groups(over, network.shapes, device)
    totals, likelihood = curvature.totals, posterior.likelihood
    noisy: list[Curvature] = []
    fit = Fit.fixed(totals, device)
    if noise is not None:
        gaussian = require_gaussian(likelihood, noise)
        if noise == "output":
            noisy, squares = by_output(posterior, gaussian, over, data, batch_size)
            fit = Fit.by_output(gaussian, totals, squares)
        else:
            noisy = [curvature]
            fit = Fit.common(gaussian, totals, _outputs(posterior), device)

    def build(prior: Prior, factors: Tensor, level: float) -> WeightPosterior:
        if noise is None:
            return replace(posterior, prior=prior)
        law = under_noise(require_gaussian(likelihood, noise), factors)
        changed = under_factors(curvature, noisy, factors).with_totals(Totals(totals.count, level))
        return replace(posterior, prior=prior, likelihood=law, curvature=changed)

    ones = torch.ones(network.size, dtype=torch.float64, device=device)
    squares_of = groups.sums(posterior.mean.square())
    return Problem(groups, fit, squares_of, groups.sums(ones), log_det(curvature, groups, noisy), build)


def _outputs(posterior: WeightPosterior) -> int:
    """C, which the likelihood alone does not tell."""
    count = posterior.network.outputs_per_input
    if not count:
        raise InputError(
            "noise='scalar' for a posterior that has met no input yet; predict once, or pass noise='output' with data."
        )
    return count


def of_functions(posterior: FunctionPosterior, over: Over, noise: Noise | None) -> Problem:
    network, device, totals = posterior.network, posterior.network.device, posterior.totals
    groups = Groups(over, network.shapes, device)
    if noise == "output":
        raise InputError(
            "noise='output' for a Gaussian process, which keeps no residuals by output; pass noise='scalar', or choose "
            "the noise with ll.laplace(...) and build the process with it."
        )
    fit = Fit.fixed(totals, device)
    if noise is not None:
        fit = Fit.common(require_gaussian(posterior.likelihood, noise), totals, posterior.points.seeds_each, device)

    def build(prior: Prior, factors: Tensor, level: float) -> FunctionPosterior:
        if noise is None:
            return posterior.with_prior(prior)
        law = under_noise(require_gaussian(posterior.likelihood, noise), factors)
        changed = _under_factor(posterior, factors[0])
        given = Totals(totals.count, level)
        return replace(changed, likelihood=law, totals=given).with_prior(prior)

    theta = network.vector().double()
    means = [theta] if posterior.shift is None else list(theta + posterior.shift)
    squares = posterior.scale * torch.stack([groups.sums(mean.square()) for mean in means]).sum(0)
    values = _eigenvalues(posterior, groups)
    if values is None:
        return Problem(groups, fit, squares, torch.zeros_like(squares), _by_kernel(posterior, groups), build)
    spectra = [Spectrum(tuple(network.shapes), values)]
    terms = Terms.of(groups, spectra, [spectra] if noise else [])
    return Problem(groups, fit, squares, torch.full_like(squares, float(len(values))), terms, build)


def _under_factor(posterior: FunctionPosterior, factor: Tensor) -> FunctionPosterior:
    """With the likelihood's curvature multiplied; kernels are kept. Points that hold no data know of no likelihood."""
    if posterior.projection is not None:
        projection = replace(posterior.projection, seen=posterior.projection.seen * factor)
        return replace(posterior, projection=projection)
    law = under_noise(require_gaussian(posterior.likelihood, "scalar"), factor.reshape(1))
    return replace(posterior, points=posterior.points.scaled(factor, root_of(law, posterior.coupled)))


def _eigenvalues(posterior: FunctionPosterior, groups: Groups) -> Tensor | None:
    """Eigenvalues κ of kernels under a unit prior, log det = Σ log (1 + κ / δ); None where δ differs."""
    network, projection = posterior.network, posterior.projection
    with torch.inference_mode(False), torch.no_grad():
        if projection is not None:
            if groups.over != "scalar" or not projection.base.is_uniform:
                raise InputError(
                    f"over={groups.over!r} for a process whose data were projected on inducing inputs under "
                    f"{projection.base}: only multiples of that can be compared. Pass over='scalar' with one number "
                    "for a prior to ll.gaussian_process, or use ll.Everything() or ll.Subset(…)."
                )
            base = projection.base.by_parameter(network.shapes, network.device)[network.names[0]]
            return (torch.linalg.eigvalsh(symmetric(projection.seen)) * base).clamp_min(0).flatten()
        if groups.over != "scalar":
            return None
        one = torch.ones((), dtype=torch.float64, device=network.device)
        gram = posterior.points.gram([(tuple(network.names), one)])
        return (torch.linalg.eigvalsh(symmetric(gram)) / posterior.scale).clamp_min(0).flatten()


def _by_kernel(posterior: FunctionPosterior, groups: Groups) -> AutomaticLogDet:
    def function(d: Tensor, factors: Tensor) -> Tensor:
        return posterior.with_prior(groups.precisions(d / factors.prod())).conditioning.logdet()

    return AutomaticLogDet(function)
