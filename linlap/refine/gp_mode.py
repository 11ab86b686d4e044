"""The mode of a Gaussian process over the linear model's outputs, and Laplace's method there."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from linlap.data import as_batches
from linlap.errors import InputError, LinlapWarning
from linlap.network.inputs import count, tensors_of
from linlap.posteriors import FunctionPosterior, Refinement, WeightPosterior
from linlap.posteriors.gather import Selection, selection
from linlap.refine.base import Method
from linlap.refine.gp_ascent import Ascent, Landscape, ascend, check_targets
from linlap.refine.gp_points import AtPoints
from linlap.refine.gp_projected import ThroughPoints


@dataclass(frozen=True)
class GpMode(Method):
    """Moves a Gaussian process to its mode under the prior and the data, and takes its covariance there.

    Newton's method in function space, with a line search, until the norm of the gradient Jᵀ r − P0 m is `tolerance`
    beside that of its parts; at most `steps` of it. `ll.Sparse` processes take a pass over the data each step; their
    mean is the best of those that the inducing inputs and θ* span. `data` are those the process was built on, in the
    same order.
    """

    steps: int = 250
    tolerance: float = 1e-10
    batch_size: int = 256

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise InputError(f"GpMode with steps={self.steps!r}; pass a positive number of steps, for instance 250.")
        number = isinstance(self.tolerance, int | float) and not isinstance(self.tolerance, bool)
        if not number or not 0 < self.tolerance < 1:
            raise InputError(f"GpMode with tolerance={self.tolerance!r}; pass a number in (0, 1), for instance 1e-10.")

    def refine(self, posterior: Any, data: Any, *, progress: bool = True) -> FunctionPosterior:
        """The process at its mode; the one given stays as it is."""
        if isinstance(posterior, WeightPosterior):
            raise InputError(
                "GpMode finds the mode of a Gaussian process, and this is a posterior over weights; use ll.GlmMap()."
            )
        if not isinstance(posterior, FunctionPosterior):
            raise InputError(
                f"a {type(posterior).__name__} is no Gaussian process; pass what ll.gaussian_process returned."
            )
        with torch.inference_mode(False), torch.no_grad():
            landscape = self._landscape(posterior, data, progress)
            found = ascend(landscape, self.tolerance, self.steps, progress)
            _warn(found)
            record = Refinement("GpMode", found.steps, found.objective, found.norm, found.converged)
            return replace(landscape.moved(found.state), refinement=record).prepare()

    def _landscape(self, posterior: FunctionPosterior, data: Any, progress: bool) -> Landscape:
        batches = as_batches(data, self.batch_size, posterior.network.device)
        if posterior.projection is not None:
            return ThroughPoints.of(posterior, posterior.projection, batches, progress)
        found = selection(posterior.network, batches, posterior.likelihood, posterior.inducing, progress)
        _check_same(posterior, found)
        return AtPoints.of(posterior, found, progress)


def _check_same(posterior: FunctionPosterior, found: Selection) -> None:
    """That the data are those the process was built on."""
    known = posterior.points.x
    built = round(posterior.scale * count(known))
    if found.seen != built:
        raise InputError(
            f"the process was built on {built} data and these are {found.seen}; pass the same data, or build one on "
            "these with ll.gaussian_process."
        )
    pairs = zip(tensors_of(found.x), tensors_of(known), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise InputError(
            f"the inputs that {posterior.inducing} takes from these data are not those the process was built on; pass "
            "the same data in the same order (a DataLoader without shuffling or augmentation), or build one on these "
            "with ll.gaussian_process."
        )
    f = found.f if posterior.points.at is None else posterior.points.at
    check_targets(posterior, float(posterior.likelihood.log_prob(found.y, f).double().sum()))


def _warn(found: Ascent) -> None:
    if not found.converged:
        warnings.warn(
            f"after {found.steps} steps the gradient at the process's mean has norm {found.norm:.2g}, "
            f"{found.relative:.2g} beside its parts: this is not yet the mode. Pass more steps, such as "
            "ll.GpMode(steps=1000), or a larger prior precision.",
            LinlapWarning,
            stacklevel=4,
        )
