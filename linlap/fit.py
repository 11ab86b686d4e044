"""From a model and data to a posterior over weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from linlap.curvature import Kron, LowRank, Structure
from linlap.data import as_batches
from linlap.errors import InputError
from linlap.evidence import Evidence
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.memory import require
from linlap.posteriors import WeightPosterior, as_prior
from linlap.prior import Prior
from linlap.sweep import DataSweep


def laplace(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    structure: Structure | None = None,
    prior: Prior | float | None = None,
    *,
    parameters: str | Iterable[str] | None = None,
    seeds: int | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> WeightPosterior:
    """The Laplace-GGN posterior of a trained model.

    `data` are the training data: (X, y), a Dataset, a DataLoader, or any re-iterable of (x, y). `structure`
    defaults to `Kron()`. `prior` is best the one of the training; None chooses one precision for all weights by the
    evidence, `Evidence()`. `parameters` chooses the weights to be uncertain about: None for all that train,
    "last" for the last layer, or names and patterns. `seeds=k` replaces the C exact backward passes of each
    datum by k random ones, unbiased, for many outputs. The model is copied, and left as it is.
    """
    structure = Kron() if structure is None else structure
    check_kinds(model, likelihood)
    if not isinstance(structure, Structure):
        raise InputError(f"structure is {structure!r}; pass an object such as ll.Kron(), ll.Full() or ll.Diagonal().")
    given = as_prior(1.0 if prior is None else prior)
    network = Network(model, parameters)
    given.by_parameter(network.shapes, network.device)
    require(
        structure.bytes_needed(network.outlines, network.tables),
        network.device,
        f"{structure} over {network.size} weights",
        "Pass a smaller structure (ll.Kron(), or ll.Diagonal(), the smallest), or choose fewer `parameters`, such as "
        "'last'.",
    )
    if seeds is not None and isinstance(structure, LowRank):
        raise InputError(f"seeds={seeds} with {structure}, which has no use for seeds; leave them out.")
    batches = as_batches(data, batch_size, network.device)
    dense = structure.forms_dense_rows
    sweep = DataSweep(network, batches, likelihood, seeds=seeds, dense=dense, progress=progress)
    with torch.inference_mode(False), torch.no_grad():
        curvature = structure.fit(sweep)
    posterior = WeightPosterior(network, likelihood, structure, curvature, given)
    return Evidence().select(posterior) if prior is None else posterior


def check_kinds(model: Any, likelihood: Any) -> None:
    """Objects, not names of them."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; pass a trained torch.nn.Module.")
    if not isinstance(likelihood, Likelihood):
        raise InputError(
            f"likelihood is {likelihood!r}; pass an object such as ll.Categorical(), ll.Bernoulli() or "
            "ll.Gaussian(noise=0.1)."
        )
