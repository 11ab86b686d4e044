"""Sampling of f."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from linlap.checks import check_generator, is_whole
from linlap.errors import InputError
from linlap.integrators.base import Integrator, Predictor
from linlap.integrators.moments import Moments, moments_of_samples
from linlap.likelihoods import ClassLikelihood, Likelihood
from linlap.linalg import psd_sqrt
from linlap.types import Gaussian

_NUMBERS_AT_ONCE = 2**18  # few enough to stay in a processor's cache from one operation to the next


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

    def in_parts(self, likelihood: Likelihood, device: torch.device) -> Predictor:
        generator = self._generator(device)

        def predict(laws: Sequence[Gaussian]) -> list[td.Distribution]:
            return self._predictions(likelihood, [self._accept(likelihood, law) for law in laws], generator)

        return predict

    def _predict(self, likelihood: Likelihood, latent: Gaussian) -> td.Distribution:
        return self._predictions(likelihood, [latent], self._generator(latent.mean.device))[0]

    def _predictions(
        self, likelihood: Likelihood, laws: Sequence[Gaussian], generator: torch.Generator
    ) -> list[td.Distribution]:
        """Under each law, from the same noise."""
        if isinstance(likelihood, ClassLikelihood):
            pooled = [
                torch.cat([likelihood.pool(f.flatten(1, 2)).view(*f.shape[1:]) for f in groups], 1)
                for groups in self._draws(laws, generator)
            ]
            return [likelihood.observe(f) for f in torch.cat(pooled).unbind(1)]
        samples = torch.cat([torch.cat(list(groups), 2) for groups in self._draws(laws, generator)], 1)
        return [likelihood.mixture(f) for f in samples.unbind(2)]

    def _moments(self, likelihood: Likelihood, latent: Gaussian) -> Moments:
        draws = self._draws([latent], self._generator(latent.mean.device))
        return Moments.cat([moments_of_samples(likelihood, f[:, :, 0]) for groups in draws for f in groups])

    def _draws(self, laws: Sequence[Gaussian], generator: torch.Generator) -> Iterator[Iterator[Tensor]]:
        """Samples `[S, n', m', C]` of a few inputs at a time, under some of the laws after others, which share noise.

        Noise is drawn input by input: that of one does not depend on how inputs are split over calls.
        """
        mean, cov = (torch.stack(parts, 1) for parts in zip(*((law.mean, law.cov) for law in laws), strict=True))
        root = cov.clamp_min(0).sqrt() if laws[0].is_diagonal else psd_sqrt(cov)
        m, c = mean.shape[1:]
        group = min(m, max(1, _NUMBERS_AT_ONCE // (self.samples * c)))
        size = max(1, _NUMBERS_AT_ONCE // (self.samples * c * group))
        for means, roots in zip(mean.split(size), root.split(size), strict=True):
            noise = mean.new_empty(len(means), c, self.samples)
            for of_one in noise:
                of_one.normal_(generator=generator)
            pairs = zip(means.split(group, 1), roots.split(group, 1), strict=True)
            yield (_sampled(some, their_roots, noise) for some, their_roots in pairs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if self.generator is None:
            return torch.Generator(device).manual_seed(0)
        if self.generator.device.type != device.type:
            raise InputError(
                f"the generator is on {self.generator.device} and the outputs on {device}; "
                f"pass torch.Generator('{device}')."
            )
        return self.generator


def _sampled(mean: Tensor, root: Tensor, noise: Tensor) -> Tensor:
    """f `[S, n, m, C]` of means `[n, m, C]`, roots of covariances or of variances, and noise `[n, C, S]`.

    In memory samples come last, where passes over classes are quickest.
    """
    if root.ndim == mean.ndim:
        f = mean.unsqueeze(-1) + root.unsqueeze(-1) * noise.unsqueeze(1)
    else:
        f = torch.baddbmm(mean.flatten(1).unsqueeze(-1), root.flatten(1, 2), noise).view(*mean.shape, noise.shape[-1])
    return f.movedim(-1, 0)
