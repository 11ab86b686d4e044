"""Expectations under a Gaussian over f: from `Gaussian` over f(x) to a distribution over y."""

from __future__ import annotations

from linlap.integrators.base import Integrator
from linlap.integrators.exact import Exact
from linlap.integrators.gauss_hermite import GaussHermite
from linlap.integrators.laplace_bridge import LaplaceBridge
from linlap.integrators.moments import Moments, moments_of_samples
from linlap.integrators.monte_carlo import MonteCarlo
from linlap.integrators.probit import Probit
from linlap.likelihoods import Likelihood

__all__ = [
    "Exact",
    "GaussHermite",
    "Integrator",
    "LaplaceBridge",
    "Moments",
    "MonteCarlo",
    "Probit",
    "default_for",
    "moments_of_samples",
]


def default_for(likelihood: Likelihood) -> Integrator:
    """The most exact integrator that does this likelihood with any number of outputs."""
    if Exact.supports(likelihood):
        return Exact()
    if GaussHermite.supports(likelihood):
        return GaussHermite()
    return MonteCarlo()
