"""One fit: everything checked, ready to go through the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from linlap.curvature import Curvature, Kron, LowRank, Structure
from linlap.data import Batches, as_batches
from linlap.errors import InputError
from linlap.leave_one_out import LeaveOneOut
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.memory import require
from linlap.posteriors import WeightPosterior, as_prior
from linlap.prior import Prior
from linlap.sweep import DataSweep


@dataclass(frozen=True)
class Options:
    """What all fits of one call have in common."""

    structure: Structure
    parameters: str | Iterable[str] | None
    seeds: int | None
    batch_size: int
    progress: bool

    @classmethod
    def of(
        cls,
        structure: Structure | None,
        parameters: str | Iterable[str] | None,
        seeds: int | None,
        batch_size: int,
        progress: bool,
    ) -> Options:
        structure = Kron() if structure is None else structure
        if not isinstance(structure, Structure):
            raise InputError(
                f"structure is {structure!r}; pass an object such as ll.Kron(), ll.Full() or ll.Diagonal()."
            )
        if seeds is not None and isinstance(structure, LowRank):
            raise InputError(f"seeds={seeds} with {structure}, which has no use for seeds; leave them out.")
        if parameters is not None and not isinstance(parameters, str):
            parameters = tuple(parameters)
        return cls(structure, parameters, seeds, batch_size, progress)


@dataclass(frozen=True, eq=False)
class Task:
    """A network, its data and its likelihood; without a prior one is to be chosen."""

    network: Network
    batches: Batches
    likelihood: Likelihood
    prior: Prior | None
    options: Options

    @classmethod
    def of(
        cls, model: nn.Module, data: Any, likelihood: Likelihood, prior: Prior | float | None, options: Options
    ) -> Task:
        check_kinds(model, likelihood)
        given = None if prior is None else as_prior(prior)
        network = Network(model, options.parameters)
        if given is not None:
            given.by_parameter(network.shapes, network.device)
        require(
            options.structure.bytes_needed(network.outlines, network.tables),
            network.device,
            f"{options.structure} over {network.size} weights",
            "Pass a smaller structure (ll.Kron(), or ll.Diagonal(), the smallest), or choose fewer `parameters`, such "
            "as 'last'.",
        )
        return cls(network, as_batches(data, options.batch_size, network.device), likelihood, given, options)

    def curvature(self) -> Curvature:
        """What the structure makes of the data."""
        structure, options = self.options.structure, self.options
        sweep = DataSweep(
            self.network,
            self.batches,
            self.likelihood,
            seeds=options.seeds,
            dense=structure.forms_dense_rows,
            progress=options.progress,
        )
        with torch.inference_mode(False), torch.no_grad():
            return structure.fit(sweep)

    def posterior(self, curvature: Curvature) -> WeightPosterior:
        """The posterior with this curvature, under the prior given or the default one."""
        prior = Prior() if self.prior is None else self.prior
        posterior = WeightPosterior(self.network, self.likelihood, self.options.structure, curvature, prior)
        if self.prior is not None:
            return posterior
        return LeaveOneOut(self.batches, batch_size=self.options.batch_size).select(posterior)


def check_kinds(model: Any, likelihood: Any) -> None:
    """Objects, not names of them."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; pass a trained torch.nn.Module.")
    if not isinstance(likelihood, Likelihood):
        raise InputError(
            f"likelihood is {likelihood!r}; pass an object such as ll.Categorical(), ll.Bernoulli() or "
            "ll.Gaussian(noise=0.1)."
        )
