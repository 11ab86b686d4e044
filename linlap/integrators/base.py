"""What an integrator does, and the checks before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import distributions as td

from linlap.errors import InputError, NotFiniteError
from linlap.integrators.moments import Moments
from linlap.likelihoods import Likelihood
from linlap.types import Gaussian

Predictor = Callable[[Sequence[Gaussian]], list[td.Distribution]]


class Integrator(ABC):
    """Averages p(y | f) over f ~ latent, each input by itself."""

    @classmethod
    @abstractmethod
    def supports(cls, likelihood: Likelihood, outputs: int | None = None) -> bool:
        """Whether it can do this likelihood with so many outputs; None means with any number."""

    def variances_suffice(self, likelihood: Likelihood) -> bool:
        """Whether covariances between outputs make no difference."""
        return False

    def in_parts(self, likelihood: Likelihood, device: torch.device) -> Predictor:
        """Predicts for inputs that come in several parts, each with several laws. Where there is noise it is the same
        for all laws, and the same as if the inputs had come as one."""
        return lambda laws: [self.predict(likelihood, law) for law in laws]

    @abstractmethod
    def _predict(self, likelihood: Likelihood, latent: Gaussian) -> td.Distribution: ...

    @abstractmethod
    def _moments(self, likelihood: Likelihood, latent: Gaussian) -> Moments: ...

    def predict(self, likelihood: Likelihood, latent: Gaussian) -> td.Distribution:
        """∫ p(y | f) N(f; latent) df for each input."""
        return self._predict(likelihood, self._accept(likelihood, latent))

    def moments(self, likelihood: Likelihood, latent: Gaussian) -> Moments:
        """Mean and variance of y for each input, the variance split into aleatoric and epistemic."""
        return self._moments(likelihood, self._accept(likelihood, latent))

    def _accept(self, likelihood: Likelihood, latent: Gaussian) -> Gaussian:
        if latent.mean.ndim != 2:
            raise InputError(f"a latent mean of shape {tuple(latent.mean.shape)}; pass [n, C].")
        outputs = latent.mean.shape[1]
        likelihood.check_outputs(outputs)
        if not self.supports(likelihood, outputs):
            able = [kind.__name__ for kind in Integrator.__subclasses__() if kind.supports(likelihood, outputs)]
            raise InputError(
                f"{type(self).__name__} cannot integrate {type(likelihood).__name__} with {outputs} "
                f"output{'s' * (outputs != 1)}; pass {' or '.join(able)}."
            )
        latent = latent.marginals()
        if not (torch.isfinite(latent.mean).all() and torch.isfinite(latent.cov).all()):
            raise NotFiniteError("the latent mean or covariance has NaN or infinite entries; look at the posterior.")
        return latent
