"""Sampling of f."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from linlap.checks import check_generator, is_whole
from linlap.errors import InputError
from linlap.integrators.base import Integrator
from linlap.integrators.moments import Moments, moments_of_samples
from linlap.likelihoods import ClassLikelihood, Likelihood
from linlap.linalg import draw
from linlap.types import Gaussian

_NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class MonteCarlo(Integrator):
    """Averages over samples of f, for every likelihood.

    Without a generator each call starts from the same seed: the same call gives the same answer, and the
    global random state is left alone. A generator given decides the result, and moves on with each call.
    """

    samples: int = 1000
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.samples):
            raise InputError(f"MonteCarlo(samples={self.samples!r}); pass a whole number ≥ 1.")
        check_generator(self.generator)

    @classmethod
    def supports(cls, likelihood: Likelihood, outputs: int | None = None) -> bool:
        return True

    def _predict(self, likelihood: Likelihood, latent: Gaussian) -> td.Distribution:
        draws = self._draws(latent)
        if isinstance(likelihood, ClassLikelihood):
            return likelihood.observe(torch.cat([likelihood.pool(f) for f in draws]))
        return likelihood.mixture(torch.cat(list(draws), 1))

    def _moments(self, likelihood: Likelihood, latent: Gaussian) -> Moments:
        return Moments.cat([moments_of_samples(likelihood, f) for f in self._draws(latent)])

    def _draws(self, latent: Gaussian) -> Iterator[Tensor]:
        """Samples `[S, n', C]` of a few inputs at a time, as many as fit in a fixed amount of memory."""
        generator = self._generator(latent.mean.device)
        rows = max(1, _NUMBERS_AT_ONCE // (self.samples * latent.mean.shape[1]))
        for mean, cov in zip(latent.mean.split(rows), latent.cov.split(rows), strict=True):
            yield draw(Gaussian(mean, cov), self.samples, generator)

    def _generator(self, device: torch.device) -> torch.Generator:
        if self.generator is None:
            return torch.Generator(device).manual_seed(0)
        if self.generator.device.type != device.type:
            raise InputError(
                f"the generator is on {self.generator.device} and the outputs on {device}; "
                f"pass torch.Generator('{device}')."
            )
        return self.generator
