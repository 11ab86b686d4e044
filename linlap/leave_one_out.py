"""Choosing the prior by data left out, one at a time, of the linear model; the default where no prior is given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from linlap.checks import is_whole
from linlap.choice import AnyPosterior, PriorChoice
from linlap.data import as_batches
from linlap.distributed import sum_over_processes
from linlap.errors import InputError
from linlap.evidence import Evidence
from linlap.integrators import MonteCarlo, default_for
from linlap.likelihoods import Gaussian as Normal
from linlap.likelihoods import Likelihood
from linlap.network.inputs import map_tensors
from linlap.posteriors import FunctionPosterior
from linlap.posteriors.points import Root, root_of
from linlap.prior import Prior
from linlap.types import Gaussian, Inputs

FACTORS = tuple(10.0 ** (i / 2) for i in range(11))
_COVARIANCES_AT_ONCE = 2**22  # their numbers
_WORK = 2**31  # multiplications for all covariances
_FEWEST = 20
_SAMPLES = 200  # of f, the same noise for every prior


@dataclass(frozen=True, eq=False)
class LeaveOneOut(PriorChoice):
    """The evidence's precision, or a multiple of it, up to 10⁵: the least that does no harm.

    Where the likelihood is not Gaussian the evidence is Laplace's, and its precision makes predictions too wide where a
    network tells its data apart almost surely. Here it is raised by half decades, and each scored by
    −log p(y_n | the other data) in the linear model, whose law without datum n follows from the law with it. Of those
    within `tolerance` nats a datum of the best, the smallest is taken. Under a Gaussian likelihood it is the evidence's
    own, unless a structure that is an approximation makes the posterior so wide that a datum would say more than all
    data do: then the least precision where none does.

    `data` must be those of the fit; of more than `most` (fewer, where outputs are many) so many are left out in turn,
    evenly spread. That takes one pass. The temperature stays.
    """

    data: Any = field(repr=False)
    most: int = 1000
    tolerance: float = 0.01
    batch_size: int = 256

    def __post_init__(self) -> None:
        if not is_whole(self.most):
            raise InputError(f"most={self.most!r}; pass a positive number of data to leave out, for instance 1000.")
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < math.inf):
            raise InputError(f"tolerance={self.tolerance!r}; pass nats a datum, 0 or a little more, for instance 0.01.")

    def select(self, posterior: AnyPosterior) -> AnyPosterior:
        least = Evidence().select(posterior.prepare())
        priors = [least.prior.times(factor) for factor in FACTORS]
        with torch.inference_mode(False), torch.no_grad():
            losses = self._losses(posterior, priors)
        gaussian = isinstance(posterior.likelihood, Normal)
        good = losses.isfinite() if gaussian else losses <= losses.min() + self.tolerance
        if not good.any():  # an infinite loss is no reason for any
            return least.with_prior(priors[-1])
        return least.with_prior(priors[int(good.nonzero()[0])])

    def _losses(self, posterior: Any, priors: list[Prior]) -> Tensor:
        """Mean of −log p of the left-out data under each prior."""
        likelihood, laws = posterior.likelihood, posterior.under(priors)
        exact = default_for(likelihood)
        integrator = MonteCarlo(_SAMPLES) if isinstance(exact, MonteCarlo) else exact
        predict = integrator.in_parts(likelihood, posterior.network.device)
        root = root_of(likelihood, posterior.coupled if isinstance(posterior, FunctionPosterior) else True)
        total = torch.zeros(len(priors) + 1, dtype=torch.float64, device=posterior.network.device)
        for x, y in self._chosen(posterior, len(priors)):
            start = 0
            for part in laws.parts(x, None):
                f, covs = laws.at(part, False)
                target = likelihood.prepare(y[start : start + len(f)], f)
                start += len(f)
                left = [left_out(likelihood, root, target, f, cov) for cov in covs]
                # In place of what is impossible, so that the noise stays the same for the others.
                known = Gaussian(f.double(), torch.zeros_like(covs[0], dtype=torch.float64))
                predictions = predict([known if law is None else law for law in left])
                total[:-1] += torch.stack([_loss(p, target) for p in predictions]).to(total)
                total[:-1] += total.new_tensor([math.inf if law is None else 0.0 for law in left])
                total[-1] += len(f)
        total = sum_over_processes(total)
        if not total[-1]:
            raise InputError("LeaveOneOut(data) holds no data. Pass the data of the fit.")
        return total[:-1] / total[-1]

    def _chosen(self, posterior: Any, priors: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Every so-manieth datum, few at a time."""
        network = posterior.network
        totals = posterior.totals if isinstance(posterior, FunctionPosterior) else posterior.curvature.totals
        step, seen = 1, 0
        for x, y in as_batches(self.data, self.batch_size, network.device):
            network.prepare(x)
            c = network.outputs_per_input
            step = math.ceil(totals.count / min(self.most, max(_FEWEST, _WORK // (priors * c**3))))
            rows = torch.arange(-seen % step, len(y), step, device=network.device)
            seen += len(y)
            for few in rows.split(max(1, _COVARIANCES_AT_ONCE // (priors * c**2))) if len(rows) else ():
                yield map_tensors(x, itemgetter(few)), y[few]


def left_out(likelihood: Likelihood, root: Root, y: Tensor, f: Tensor, cov: Tensor) -> Gaussian | None:
    """The law of each f `[n, C]` without its own datum, from the law with it: its precision less Λ, its mean a step of
    Newton's back. None where the covariance allows no datum to have been there, as an approximate one may."""
    f, cov = f.double(), cov.double()
    s = root(f)
    back = s.mT @ cov
    factor, info = torch.linalg.cholesky_ex(torch.eye(s.shape[-1], dtype=f.dtype, device=f.device) - back @ s)
    if info.any():
        return None
    half = torch.linalg.solve_triangular(factor, back, upper=False)
    wider = cov + half.mT @ half
    if not torch.isfinite(wider).all():
        return None
    return Gaussian(f - (wider @ likelihood.residual(y, f).unsqueeze(-1)).squeeze(-1), wider)


def _loss(p: Distribution, y: Tensor) -> Tensor:
    """−log p(y), summed over data."""
    return -p.log_prob(y.reshape(p.batch_shape + p.event_shape)).double().sum()
