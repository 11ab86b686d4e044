"""A Gaussian over weights, and what it says about the outputs of the linear model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from linlap.checks import check_generator, check_seed, is_whole
from linlap.curvature import Curvature, Structure
from linlap.errors import InputError
from linlap.jacobian import covariance, family, whitened
from linlap.likelihoods import Likelihood
from linlap.linalg import BlockDiagonal
from linlap.network import Network
from linlap.network.inputs import count, take
from linlap.network.memory import require
from linlap.posteriors.laws import Laws, as_priors
from linlap.posteriors.refinement import Refinement
from linlap.prior import Prior
from linlap.types import Gaussian, Inputs, Params


@dataclass(frozen=True, eq=False)
class WeightPosterior:
    """q(θ) = N(m, T (H + P0)⁻¹) over the weights of a network linearised at θ*.

    m is θ*, or `shift` `[P]` away from it in a refined posterior; `refinement` says how it got there. Nothing in it
    changes: another prior is another posterior, which shares the network, the curvature and its decompositions.
    """

    network: Network
    likelihood: Likelihood
    structure: Structure
    curvature: Curvature
    prior: Prior
    shift: Tensor | None = None
    refinement: Refinement | None = None

    @property
    def mean(self) -> Tensor:
        """m `[P]`, in float64."""
        theta = self.network.vector().double()
        return theta if self.shift is None else theta + self.shift

    @cached_property
    def precision(self) -> BlockDiagonal:
        """H + P0 in float64, without the temperature."""
        # Kept for calls in other modes: the evidence's derivative must not depend on which one came first.
        with torch.inference_mode(False), torch.enable_grad():
            return self.curvature.precision(self.prior)

    @cached_property
    def _operator(self) -> BlockDiagonal:
        """The precision for contractions with the network's Jacobian."""
        with torch.inference_mode(False), torch.enable_grad():
            return self.precision.working(self.network.dtype)

    def prepare(self) -> WeightPosterior:
        """Make the decompositions now that the first prediction would otherwise wait for; returns the posterior."""
        _ = self._operator
        return self

    @property
    def temperature(self) -> Tensor:
        return torch.as_tensor(self.prior.temperature, dtype=torch.float64, device=self.network.device)

    def with_prior(self, prior: Prior | float) -> WeightPosterior:
        """The posterior under another prior: no pass over the data, no decomposition made twice.

        The mean stays where it is; `ll.refine` moves it to the new prior's.
        """
        prior = as_prior(prior)
        prior.by_parameter(self.network.shapes, self.network.device)  # says now if it does not fit
        return replace(self, prior=prior)

    def latent(self, x: Inputs, *, diagonal: bool = False, joint: bool = False, memory: int | None = None) -> Gaussian:
        """The law of f(x) under the linear model: mean `[n, C]`, covariance `[n, C, C]`.

        `diagonal=True` gives variances `[n, C]` only, cheaper for many outputs; `joint=True` covariances
        between inputs too, `[n, C, n, C]`. `memory` bounds the bytes a batch of inputs may take.
        """
        if diagonal and joint:
            raise InputError("diagonal=True and joint=True exclude each other; joint covariances are full.")
        if joint:
            return self._joint(x)
        self.network.prepare(x)
        require_covariances(self.network, count(x), diagonal)
        means, covs = [], []
        for part in self._parts_to_contract(x, memory, diagonal):
            lin = self.network.linearize(part, once=True)
            means.append(self._moved(part, lin.mean))
            covs.append(covariance(self._operator, lin.jacobian, diagonal) * self._t)
        return Gaussian(torch.cat(means), torch.cat(covs))

    def latents(
        self, x: Inputs, priors: Iterable[Prior | float], *, diagonal: bool = False, memory: int | None = None
    ) -> list[Gaussian]:
        """`latent` under each of several priors: x is linearised, and rotated into the curvature's eigenbases, once."""
        return self.under(priors).latents(x, diagonal=diagonal, memory=memory)

    def under(self, priors: Iterable[Prior | float]) -> Laws:
        """What is said of outputs under several priors, made ready for many batches."""
        priors, network = as_priors(priors), self.network
        for prior in priors:
            prior.by_parameter(network.shapes, network.device)
        # Where bases depend on the prior, as they do under priors that differ between weights, each has its own.
        columns = network.size if self.structure.forms_dense_rows else self.structure.directions
        apart = 8 * columns * sum(not prior.is_uniform for prior in priors)
        size = network.size * (2 * len(priors) * self._item + apart)
        require(size, network.device, f"precisions of {network.size} weights under {len(priors)} priors", "Pass fewer.")
        with torch.inference_mode(False), torch.no_grad():
            precisions = family((self.curvature.precision(prior) for prior in priors), network.dtype)

        def at(x: Inputs, diagonal: bool) -> tuple[Tensor, Tensor]:
            lin = network.linearize(x, once=True)
            return self._moved(x, lin.mean), precisions.covariances(lin.jacobian, diagonal)

        return Laws(priors, network, self._parts_to_contract, at)

    def _moved(self, x: Inputs, f: Tensor) -> Tensor:
        """f_lin(x, m) `[n, C]`."""
        if self.shift is None:
            return f
        return f + self.network.jvp(x, self._named(self.shift))

    @property
    def _t(self) -> Tensor:
        return self.temperature.to(self.network.dtype)

    @property
    def _item(self) -> int:
        """Bytes a number."""
        return torch.finfo(self.network.dtype).bits // 8

    def _parts_to_contract(self, x: Inputs, memory: int | None, diagonal: bool = False) -> Iterator[Inputs]:
        self.network.prepare(x)
        directions = 2 * min(self.structure.directions, self.network.size)
        return self._parts(x, memory, max(self.network.outputs_per_input, directions), diagonal)

    def _parts(
        self, x: Inputs, memory: int | None, seeds: int | None = None, diagonal: bool = False
    ) -> Iterator[Inputs]:
        dense = self.structure.forms_dense_rows
        size = self.network.batch_for(x, seeds=seeds, memory=memory, dense=dense, diagonal=diagonal)
        for start in range(0, count(x), size):
            yield take(x, start, start + size)

    def _joint(self, x: Inputs) -> Gaussian:
        self.network.prepare(x)
        n, c = count(x), self.network.outputs_per_input
        largest = max(op.dim for op in self._operator.blocks.values())
        size = self._item * (n * c * largest * 2 + 2 * (n * c) ** 2) + n * self.network.bytes_per_input(x)
        require(size, self.network.device, f"a joint covariance of {n} inputs", "Pass fewer inputs at a time.")
        lin = self.network.linearize(x)
        total = lin.mean.new_zeros(n * c, n * c)
        for names, operator in self._operator.blocks.items():
            features = whitened(operator, lin.jacobian.select(names)).flatten(0, 1)
            total += features @ features.mT
        return Gaussian(self._moved(x, lin.mean), (total * self._t).reshape(n, c, n, c))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Params:
        """k weight vectors, by parameter name, each `[k, *shape]`."""
        check_count(k)
        check_generator(generator)
        noise = torch.randn(k, self.network.size, generator=generator, dtype=torch.float64, device=self.network.device)
        return self._named(self._deviations(noise) + self.mean)

    def sample_functions(self, x: Inputs, k: int, *, seed: int = 0, memory: int | None = None) -> Tensor:
        """k functions of the linear model at x, `[k, n, C]`.

        Function i is the same function in every call with the same seed, however the inputs are split over
        calls: what Thompson sampling needs.
        """
        check_count(k)
        check_seed(seed)
        network = self.network
        network.prepare(x)
        size = self._item * k * network.size
        require(size, network.device, f"{k} functions of {network.size} weights", "Pass a smaller k.")
        deviations = torch.empty(k, network.size, dtype=network.dtype, device=network.device)
        for index, noise in enumerate(self._numbered_noise(k, seed)):
            deviations[index] = self._deviations(noise)[0]
        if self.shift is not None:
            deviations += self.shift
        done = []
        for part in self._parts(x, memory, seeds=max(k, network.outputs_per_input)):
            lin = self.network.linearize(part, once=True)
            done.append(lin.mean + lin.jacobian.jvp(deviations))
        return torch.cat(done, dim=1)

    def _numbered_noise(self, k: int, seed: int) -> Iterator[Tensor]:
        # Row by row, so that how many functions are asked for does not change which they are.
        device = self.network.device
        generator = torch.Generator(device).manual_seed(int(seed))
        for _ in range(k):
            yield torch.randn(1, self.network.size, generator=generator, dtype=torch.float64, device=device)

    def _deviations(self, noise: Tensor) -> Tensor:
        return self.precision.inverse_sqrt(noise) * self.temperature.sqrt()

    def _named(self, weights: Tensor) -> Params:
        return self.network.named(weights.to(self.network.dtype))

    def variance(self) -> Params:
        """Marginal variances of the weights, by parameter name."""
        return self._named(self.precision.variance() * self.temperature)

    def log_evidence(self) -> Tensor:
        """log p(D) of the linear model by Laplace's method at the mean, differentiable in the prior's precision.

        The temperature plays no part: it rescales the posterior, and belongs to no likelihood or prior.
        """
        device = self.network.device
        by_parameter = self.prior.by_parameter(self.network.shapes, device)
        fit = torch.as_tensor(self.curvature.totals.log_likelihood, dtype=torch.float64, device=device)
        complexity = torch.zeros((), dtype=torch.float64, device=device)
        for name, m in self.network.named(self.mean).items():
            d = by_parameter[name].expand(m.numel())
            complexity = complexity + (d * m.flatten().square()).sum() - d.log().sum()
        return fit - 0.5 * (complexity + self.precision.logdet())

    def __repr__(self) -> str:
        return (
            f"WeightPosterior({type(self.likelihood).__name__}, {self.structure}, {self.network.size} weights, "
            f"{self.curvature.totals.count} data, {self.prior}"
            + (f", {self.refinement!r})" if self.refinement else ")")
        )


def require_covariances(network: Network, n: int, diagonal: bool) -> None:
    """An error with the number if there is no memory for the answer."""
    c = network.outputs_per_input
    size = 2 * n * c * (1 if diagonal else c) * torch.finfo(network.dtype).bits // 8
    require(size, network.device, f"covariances of {n} inputs", "Pass diagonal=True, or fewer inputs at a time.")


def check_count(k: Any) -> None:
    if not is_whole(k):
        raise InputError(f"k={k!r}; pass a positive number of samples, for instance 10.")


def as_prior(prior: Any) -> Prior:
    """A Prior from itself, or from a precision."""
    return prior if isinstance(prior, Prior) else Prior(prior)
