"""A Gaussian process over the outputs of the linear model: the posterior of its weights, seen in function space."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from linlap import tree
from linlap.checks import check_seed
from linlap.curvature import Totals
from linlap.data import as_batches
from linlap.errors import InputError, LinlapWarning
from linlap.inducing import Everything, Inducing
from linlap.jacobian import Jacobian, own_kernel, settled
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.inputs import count, take
from linlap.network.memory import default_budget, require
from linlap.posteriors.conditioning import Conditioning, Exact, Projected
from linlap.posteriors.gather import outputs_at, projected, selection
from linlap.posteriors.laws import Laws, as_priors
from linlap.posteriors.points import Groups, Points, kernel_under, moved
from linlap.posteriors.refinement import Refinement
from linlap.posteriors.spectrum import Spectrum
from linlap.posteriors.weight import as_prior, check_count, require_covariances
from linlap.prior import Prior
from linlap.types import Gaussian, Inputs


@dataclass(frozen=True, eq=False)
class Projection:
    """All data, seen through inducing inputs under the prior `base`: R R ᵀ is the kernel of those, `seen` is
    R⁻¹ (Σ k Λ kᵀ) R⁻ᵀ, a sum over data; both `[G, m, m]` in float64."""

    base: Prior
    root: Tensor
    seen: Tensor


@dataclass(frozen=True, eq=False)
class FunctionPosterior:
    """q(f) = GP(f(x; θ*) + J(x) `shift`, k_q) for the network linearised at θ*.

    `coupled` outputs covary, as they do in weight space; independent ones are a process each, with the diagonal of Λ.
    `scale` multiplies the prior's precision, where a subset stands for more data. A refined process has moved by
    `shift` `[1, P]`, or `[C, P]` where outputs are independent and each has weights of its own; `refinement` says how.
    """

    network: Network
    likelihood: Likelihood
    inducing: Inducing
    points: Points
    prior: Prior
    totals: Totals
    scale: float = 1.0
    projection: Projection | None = None
    shift: Tensor | None = None
    refinement: Refinement | None = None

    @property
    def coupled(self) -> bool:
        return self.points.coupled

    @cached_property
    def conditioning(self) -> Conditioning:
        # Kept for calls in other modes: the evidence's derivative must not depend on which one came first.
        with torch.inference_mode(False), torch.enable_grad():
            return self._conditioned()

    def _conditioned(self) -> Conditioning:
        dtype, progress = self.network.dtype, self.points.progress
        if self.projection is None:
            return Exact.of(self.points.gram(self.groups), dtype, progress)
        ratio = self.ratio(self.projection.base)
        return Projected.of(self.projection.root / ratio.sqrt(), self.projection.seen / ratio, dtype, progress)

    @cached_property
    def groups(self) -> Groups:
        """P0 by group of parameters, with the scale in it."""
        with torch.inference_mode(False), torch.enable_grad():
            groups = self.prior.groups(self.network.shapes, self.network.device)
            return [(names, precision * self.scale) for names, precision in groups]

    def ratio(self, base: Prior) -> Tensor:
        """The one number by which this prior's precision is another's."""
        ratio = self._multiple(self.prior, base)
        if ratio is None:
            raise InputError(
                f"{self.prior} is no multiple of {base}, under which the data were projected on the inducing inputs; "
                "pass that prior to ll.gaussian_process, or use ll.Everything() or ll.Subset(…)."
            )
        return ratio

    def _multiple(self, prior: Prior, base: Prior) -> Tensor | None:
        """The number by which one prior's precision is another's, where it is one number."""
        return prior.over(base, self.network.shapes, self.network.device)

    def prepare(self) -> FunctionPosterior:
        """Make the kernel and its factor now; returns the posterior."""
        _ = self.conditioning
        return self

    @property
    def temperature(self) -> Tensor:
        return torch.as_tensor(self.prior.temperature, dtype=torch.float64, device=self.network.device)

    def with_prior(self, prior: Prior | float) -> FunctionPosterior:
        """The posterior under another prior: no pass over the data; kernels known by group of parameters are reused.

        The mean stays where it is; `ll.refine` moves it to the new prior's.
        """
        prior = as_prior(prior)
        prior.by_parameter(self.network.shapes, self.network.device)  # says now if it does not fit
        changed = replace(self, prior=prior)
        if self.projection is not None:
            changed.ratio(self.projection.base)
        return changed

    def update(self, data: Any, *, batch_size: int = 256) -> FunctionPosterior:
        """The posterior after more data: the same as a fit on all of them with the same inducing inputs.

        The mean stays where it is, and so do the outputs at which the likelihood's curvature is taken.
        """
        batches = as_batches(data, batch_size, self.network.device)
        if self.projection is not None:
            groups = self.projection.base.groups(self.network.shapes, self.network.device)
            with torch.inference_mode(False), torch.no_grad():
                root = self.projection.root
                more, totals = projected(self.points, groups, root, batches, self.likelihood, self.shift)
            projection = replace(self.projection, seen=self.projection.seen + more)
            return replace(self, projection=projection, totals=tree.add(self.totals, totals)).prepare()
        if not isinstance(self.inducing, Everything):
            raise InputError(
                f"{self.inducing} was chosen from the data there were; fit anew on all data, or use ll.Sparse(M), "
                "which takes more."
            )
        more_data = selection(self.network, batches, self.likelihood, self.inducing, self.points.progress)
        f = more_data.f if self.shift is None else outputs_at(self.network, more_data.x, self.shift, self.coupled)
        fit = float(self.likelihood.log_prob(more_data.y, f).double().sum())
        points = self.points.extended(more_data.x, f)
        return replace(self, points=points, totals=tree.add(self.totals, Totals(len(f), fit))).prepare()

    # Predictions

    def latent(self, x: Inputs, *, diagonal: bool = False, joint: bool = False, memory: int | None = None) -> Gaussian:
        """The law of f(x): mean `[n, C]`, covariance `[n, C, C]`.

        `diagonal=True` gives variances `[n, C]` only; `joint=True` covariances between inputs too, `[n, C, n, C]`.
        `memory` bounds the bytes a batch of inputs may take.
        """
        if diagonal and joint:
            raise InputError("diagonal=True and joint=True exclude each other; joint covariances are full.")
        if joint:
            return self._joint(x)
        self.network.prepare(x)
        require_covariances(self.network, count(x), diagonal)
        means, covs = [], []
        for part in self._parts(x, memory):
            mean, features = self._at(part)
            means.append(mean)
            covs.append(self._marginal(features, diagonal) * self.temperature.to(mean.dtype))
        return Gaussian(torch.cat(means), torch.cat(covs))

    def latents(
        self, x: Inputs, priors: Iterable[Prior | float], *, diagonal: bool = False, memory: int | None = None
    ) -> list[Gaussian]:
        """`latent` under each of several priors. x is linearised once; multiples of one prior share their kernels, and
        one decomposition of that of the data."""
        return self.under(priors).latents(x, diagonal=diagonal, memory=memory)

    def under(self, priors: Iterable[Prior | float]) -> Laws:
        """What is said of outputs under several priors, made ready for many batches."""
        priors = as_priors(priors)
        members = [self.with_prior(prior) for prior in priors]
        base = self.with_prior(self.prior if self.projection is None else self.projection.base)
        ratios = {k: r for k, prior in enumerate(priors) if (r := self._multiple(prior, base.prior)) is not None}
        apart = [k for k in range(len(priors)) if k not in ratios]
        size = 8 * self.points.groups * self.points.rows**2 * (4 + len(apart))
        instead = "Pass fewer, or only multiples of one prior, of which all share one decomposition."
        require(size, self.network.device, f"this process under {len(priors)} priors", instead)
        with torch.inference_mode(False), torch.no_grad():
            spectrum = base._spectrum() if ratios else None
        for k in apart:
            members[k].prepare()

        def at(x: Inputs, diagonal: bool) -> tuple[Tensor, Tensor]:
            mean, features = self._at(x)
            covs = {k: members[k]._marginal(features, diagonal) for k in apart}
            if spectrum is not None:
                found = base._marginals(features, spectrum, torch.stack([*ratios.values()]), diagonal)
                covs |= dict(zip(ratios, found, strict=True))
            return mean, torch.stack([covs[k] for k in range(len(priors))])

        return Laws(priors, self.network, self._parts, at)

    def _spectrum(self) -> Spectrum:
        if self.projection is None:
            return Spectrum.of(self.points.gram(self.groups), self.network.dtype)
        return Spectrum.of(self.projection.seen, self.network.dtype, self.projection.root)

    def _marginals(self, features: Jacobian, spectrum: Spectrum, ratios: Tensor, diagonal: bool) -> Tensor:
        """`_marginal` under the multiples of this prior."""
        weights = {name: precision.reciprocal() for names, precision in self.groups for name in names}
        own = own_kernel(features, weights, diagonal or not self.coupled)
        k = self.points.cross(self.groups, features)
        left = spectrum.remaining(own, k, ratios, self.coupled, diagonal)
        return left if diagonal or self.coupled else left.diag_embed()

    def _parts(self, x: Inputs, memory: int | None) -> Iterator[Inputs]:
        """Few enough inputs at a time for their features and for three kernels with all points."""
        c = self.network.outputs_per_input
        each = 3 * self.points.rows * c * torch.finfo(self.network.dtype).bits // 8
        budget = default_budget(self.network.device) if memory is None else memory
        size = min(self.network.batch_for(x, memory=memory), max(1, budget // each))
        for start in range(0, count(x), size):
            yield take(x, start, start + size)

    def _at(self, x: Inputs) -> tuple[Tensor, Jacobian]:
        with torch.no_grad():
            lin = self.network.linearize(x, once=True)
            features = settled(lin.jacobian, self.coupled)
            return (lin.mean if self.shift is None else lin.mean + moved(features, self.shift)), features

    def _marginal(self, features: Jacobian, diagonal: bool) -> Tensor:
        n, c = features.rows
        weights = {name: precision.reciprocal() for names, precision in self.groups for name in names}
        alone = diagonal or not self.coupled
        before = cov = own_kernel(features, weights, alone)
        for sign, v in self.conditioning.corrections(self.points.cross(self.groups, features)):
            if not self.coupled:
                cov = cov + sign * v.square().sum(1).mT
            elif diagonal:
                cov = cov + sign * v[0].square().sum(0).view(n, c)
            else:
                each = v[0].view(-1, n, c).transpose(0, 1)  # [n, rows, c]
                cov = cov + sign * (each.mT @ each)
        _say_what_is_lost(*((k if alone else k.diagonal(dim1=1, dim2=2)) for k in (cov, before)))
        if alone:
            cov = cov.clamp_min(0)  # the difference of large numbers, where little variance is left
            return cov if diagonal else cov.diag_embed()
        lacking = cov.diagonal(dim1=1, dim2=2).clamp_max(0)
        return cov - lacking.diag_embed()

    def _joint(self, x: Inputs) -> Gaussian:
        self.network.prepare(x)
        n, c, item = count(x), self.network.outputs_per_input, torch.finfo(self.network.dtype).bits // 8
        needed = item * ((2 * self.points.rows * n * c) + 4 * (n * c) ** 2) + n * self.network.bytes_per_input(x)
        require(needed, self.network.device, f"a joint covariance of {n} inputs", "Pass fewer inputs at a time.")
        mean, features = self._at(x)
        cov = kernel_under(self.groups, features, features, self.coupled)
        for sign, v in self.conditioning.corrections(self.points.cross(self.groups, features)):
            cov = cov + sign * (v.mT @ v)
        whole = cov[0].view(n, c, n, c) if self.coupled else cov.permute(1, 2, 0).diag_embed().permute(0, 2, 1, 3)
        return Gaussian(mean, whole * self.temperature.to(mean.dtype))

    def sample_functions(self, x: Inputs, k: int, *, seed: int = 0, memory: int | None = None) -> Tensor:
        """k functions drawn from the process, at x, `[k, n, C]`.

        Function i is the same function in every call with the same seed, however the inputs are split over
        calls: what Thompson sampling needs.
        """
        check_count(k)
        check_seed(seed)
        self.network.prepare(x)
        deviations = self._deviations(k, seed) * self.temperature.sqrt().to(self.network.dtype)
        done = []
        for part in self._parts(x, memory):
            mean, features = self._at(part)
            if self.coupled:
                done.append(mean + features.jvp(deviations[0]))
            else:
                each = [features.seed(c).jvp(w)[..., 0] for c, w in enumerate(deviations)]
                done.append(mean + torch.stack(each, dim=-1))
        return torch.cat(done, dim=1)

    def _deviations(self, k: int, seed: int) -> Tensor:
        """k weight vectors less their mean `[G, k, P]`: drawn from the prior, and corrected for what the data say."""
        network, g = self.network, self.points.groups
        size = 3 * g * k * network.size * torch.finfo(network.dtype).bits // 8
        require(size, network.device, f"{k} functions of {g} × {network.size} weights", "Pass a smaller k.")
        generator = torch.Generator(network.device).manual_seed(int(seed))
        drawn: list[Tensor] = []
        noise: list[Tensor] = []
        for _ in range(k):  # one after the other, so that how many are asked for does not change which they are
            for place, size in ((drawn, network.size), (noise, self.points.rows)):
                place.append(torch.randn(g, size, generator=generator, dtype=torch.float64, device=network.device))
        with torch.no_grad():
            root = self.prior_variances().sqrt()
            weights = (torch.stack(drawn, 1) * root).to(network.dtype)
            values = self.points.values(weights)
            coefficients = self.conditioning.coefficients(values, torch.stack(noise, 2).to(network.dtype))
            return weights + self.points.pulled_back(coefficients) * root.square().to(network.dtype)

    def prior_variances(self) -> Tensor:
        """The diagonal of P0⁻¹ `[P]`."""
        values = {name: precision.reciprocal() for names, precision in self.groups for name in names}
        return torch.cat([values[name].expand(shape.numel()) for name, shape in self.network.shapes.items()])

    # Evidence

    def log_evidence(self) -> Tensor:
        """log p(D) of the linear model by Laplace's method at the mean, differentiable in the prior's precision: of the
        subset alone where only that was used. The temperature plays no part. Refined independent outputs each pay for
        weights of their own."""
        fit = torch.as_tensor(self.totals.log_likelihood, dtype=torch.float64, device=self.network.device)
        by_parameter = {name: precision for names, precision in self.groups for name in names}
        penalty = torch.zeros((), dtype=torch.float64, device=self.network.device)
        theta = self.network.vector().double()
        for mean in [theta] if self.shift is None else theta + self.shift:
            for name, m in self.network.named(mean).items():
                penalty = penalty + (by_parameter[name] * m.flatten().square()).sum()
        return fit - 0.5 * (penalty + self.conditioning.logdet())

    def __repr__(self) -> str:
        """Also what is kept and what is made again, which its size decides."""
        kind = "coupled" if self.coupled else "independent"
        return (
            f"FunctionPosterior({type(self.likelihood).__name__}, {self.inducing}, {kind} outputs, "
            f"{self.totals.count} data, {self.prior}, {self.points.said}"
            + (f", {self.refinement!r})" if self.refinement else ")")
        )


def _say_what_is_lost(variance: Tensor, before: Tensor) -> None:
    """A variance is what the data leave of the prior's: where that is little, all its digits may be rounded away."""
    share = 4 * torch.finfo(variance.dtype).eps
    if (variance < share * before).any():
        instead = "" if variance.dtype == torch.float64 else "; pass a model and data in float64 where they matter"
        warnings.warn(
            f"some variances are less than {share:.0e} of what they are under the prior: {variance.dtype} rounds them "
            f"away{instead}.",
            LinlapWarning,
            stacklevel=4,
        )
