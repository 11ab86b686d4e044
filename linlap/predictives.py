"""Predictive distributions of y: of the linear model (GLM), of the network under sampled weights (BNN), at θ* (MAP)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch import distributions as td

from linlap.checks import check_generator, is_whole
from linlap.errors import InputError
from linlap.integrators import Integrator, Moments, default_for, moments_of_samples
from linlap.likelihoods import Likelihood
from linlap.posteriors import SamplePosterior, WeightPosterior
from linlap.posteriors.samples import sampled_outputs
from linlap.types import Gaussian, Inputs


class LatentPosterior(Protocol):
    """Any posterior that knows the law of f(x)."""

    @property
    def likelihood(self) -> Likelihood: ...

    def latent(self, x: Inputs, *, diagonal: bool = False) -> Gaussian: ...


class HasOutputs(Protocol):
    """A network with trained weights."""

    def outputs(self, x: Inputs) -> Tensor: ...


class NetworkPosterior(Protocol):
    """Any posterior around a network's trained weights."""

    @property
    def likelihood(self) -> Likelihood: ...

    @property
    def network(self) -> HasOutputs: ...


@dataclass(frozen=True)
class GLM:
    """The predictive of the linearised network: f is Gaussian, y follows by an integral over f.

    `integrator` defaults to the closed form where there is one, quadrature for Bernoulli outputs, and
    sampling f otherwise. `diagonal=True` leaves out covariances between outputs: cheaper for many classes.
    """

    posterior: LatentPosterior
    integrator: Integrator | None = None
    diagonal: bool = False

    def __post_init__(self) -> None:
        _check_posterior(self.posterior, "latent")
        if self.integrator is not None and not isinstance(self.integrator, Integrator):
            raise InputError(f"integrator={self.integrator!r}; pass an object such as ll.MonteCarlo(1000), or None.")

    def __call__(self, x: Inputs) -> td.Distribution:
        """The distribution of y at each input."""
        return self._integrator.predict(self.posterior.likelihood, self._latent(x))

    def moments(self, x: Inputs) -> Moments:
        """Mean, aleatoric and epistemic variance of y."""
        return self._integrator.moments(self.posterior.likelihood, self._latent(x))

    @property
    def _integrator(self) -> Integrator:
        return default_for(self.posterior.likelihood) if self.integrator is None else self.integrator

    def _latent(self, x: Inputs) -> Gaussian:
        alone = self._integrator.variances_suffice(self.posterior.likelihood)
        return self.posterior.latent(x, diagonal=self.diagonal or alone)


@dataclass(frozen=True)
class BNN:
    """The predictive of the network itself under sampled weights. Underfits with Laplace posteriors; here to compare.

    `samples=None` draws 100 weights, or takes all that a posterior of samples or an ensemble holds.
    `generator=None` draws the same weights in every call and leaves torch's own generator alone.
    """

    posterior: WeightPosterior | SamplePosterior
    samples: int | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        _check_posterior(self.posterior, "sample")
        check_generator(self.generator)
        if self.samples is not None and not is_whole(self.samples):
            raise InputError(f"samples={self.samples!r}; pass a positive number of weight samples, for instance 100.")

    def outputs(self, x: Inputs) -> Tensor:
        """f(x; θ_s) for sampled weights, `[S, n, C]`."""
        if isinstance(self.posterior, SamplePosterior):
            return self.posterior.outputs(x, self.samples)
        device = self.posterior.network.device
        generator = torch.Generator(device).manual_seed(0) if self.generator is None else self.generator
        return sampled_outputs(self.posterior, x, self.samples, generator)

    def __call__(self, x: Inputs) -> td.Distribution:
        return self.posterior.likelihood.mixture(self.outputs(x))

    def moments(self, x: Inputs) -> Moments:
        return moments_of_samples(self.posterior.likelihood, self.outputs(x))


@dataclass(frozen=True)
class MAP:
    """The network at its trained weights, with no uncertainty about them."""

    posterior: NetworkPosterior

    def __post_init__(self) -> None:
        _check_posterior(self.posterior, "network")

    def __call__(self, x: Inputs) -> td.Distribution:
        return self.posterior.likelihood.observe(self.posterior.network.outputs(x))

    def moments(self, x: Inputs) -> Moments:
        return moments_of_samples(self.posterior.likelihood, self.posterior.network.outputs(x).unsqueeze(0))


def _check_posterior(posterior: object, needs: str) -> None:
    """That it is a posterior at all, and knows what the predictive asks of it."""
    if not hasattr(posterior, "likelihood"):
        raise InputError(f"a {type(posterior).__name__} is no posterior; pass what ll.laplace returned.")
    if not hasattr(posterior, needs):
        raise InputError(
            f"a {type(posterior).__name__} has no {needs}; pass what ll.laplace returned to this "
            "predictive, or what you have to another: samples and ensembles to ll.BNN, a process to ll.GLM, a tempered "
            "network to ll.MAP."
        )
