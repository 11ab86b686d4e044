"""From a model and data to a Gaussian process: which inputs to keep, and one more pass where all data count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from linlap.curvature import Totals
from linlap.data import Batches, as_batches
from linlap.distributed import world_size
from linlap.errors import InputError
from linlap.fit import check_kinds
from linlap.inducing import Everything, Inducing, Sparse
from linlap.likelihoods import Likelihood
from linlap.linalg.large import LARGE
from linlap.network import Network
from linlap.network.inputs import map_tensors
from linlap.network.memory import require
from linlap.posteriors import FunctionPosterior, Projection, as_prior
from linlap.posteriors.conditioning import cholesky
from linlap.posteriors.gather import chosen, projected
from linlap.posteriors.points import Points, root_of
from linlap.prior import Prior


def gaussian_process(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    inducing: Inducing | None = None,
    outputs: Literal["independent", "coupled"] = "independent",
    prior: Prior | float = 1.0,
    *,
    parameters: str | Iterable[str] | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> FunctionPosterior:
    """The Laplace posterior of a trained model's linearisation as a Gaussian process over its outputs.

    `inducing` says which data it is conditioned at: `Everything()` (the default), `Subset(M)`, `TopM(M)`, or
    `Sparse(M)`, which projects all data on M of them. `outputs="coupled"` is `laplace(..., Full())` seen in function
    space; "independent" leaves out what outputs say of each other, for a C-th of the memory. Data, prior, parameters
    as in `laplace`.
    """
    inducing = Everything() if inducing is None else inducing
    check_kinds(model, likelihood)
    if not isinstance(inducing, Inducing):
        raise InputError(f"inducing is {inducing!r}; pass ll.Everything(), ll.Subset(M), ll.TopM(M) or ll.Sparse(M).")
    if outputs not in ("independent", "coupled"):
        raise InputError(f"outputs={outputs!r}; pass 'independent' or 'coupled'.")
    prior = as_prior(prior)
    network = Network(model, parameters)
    prior.by_parameter(network.shapes, network.device)
    batches = as_batches(data, batch_size, network.device)
    if isinstance(inducing, Sparse):
        return _sparse(network, batches, likelihood, inducing, outputs == "coupled", prior, progress)
    return _exact(network, batches, likelihood, inducing, outputs == "coupled", prior, progress)


def _exact(
    network: Network,
    batches: Batches,
    likelihood: Likelihood,
    inducing: Inducing,
    coupled: bool,
    prior: Prior,
    progress: bool,
) -> FunctionPosterior:
    _alone(f"{inducing}")
    x, fits, seen = chosen(network, batches, likelihood, inducing, progress)
    points = Points(network, x, coupled, root_of(likelihood, coupled), progress)
    totals = Totals(len(fits), float(fits.sum()))
    posterior = FunctionPosterior(network, likelihood, inducing, points, prior, totals, seen / len(fits))
    _require_kernel(points)
    return posterior.prepare()


def _require_kernel(points: Points, projected: bool = False) -> None:
    item = torch.finfo(points.network.dtype).bits // 8
    each = 8 + 2 * item  # the kernel in float64, as it is kept, and its factor
    if points.rows < LARGE:
        each += 8  # whose factor is not written over it
    if projected:
        each += 32  # what the data say, both under the posterior's prior, and what is added up of a batch
    require(
        points.groups * points.rows**2 * each,
        points.network.device,
        f"a kernel of {points.groups} × {points.rows} × {points.rows} and its factor",
        "Pass inducing=ll.Subset(M) or ll.Sparse(M) with a smaller M, or outputs='independent'.",
    )


def _sparse(
    network: Network,
    batches: Batches,
    likelihood: Likelihood,
    inducing: Sparse,
    coupled: bool,
    prior: Prior,
    progress: bool,
) -> FunctionPosterior:
    x = inducing.inputs
    if x is None:
        _alone(f"{inducing}, which draws inputs,")
        x, _, _ = chosen(network, batches, likelihood, inducing, progress)
    x = map_tensors(x, lambda t: t.to(network.device))
    try:
        network.prepare(x)
    except InputError as error:
        raise type(error)(f"the inducing inputs do not fit: {error}") from error
    points = Points(network, x, coupled, None, progress)
    _require_kernel(points, projected=True)
    groups = prior.groups(network.shapes, network.device)
    with torch.inference_mode(False), torch.no_grad():
        root = cholesky(points.gram(groups), "kernel of the inducing inputs", progress, network.dtype)
        seen, totals = projected(points, groups, root, batches, likelihood)
    projection = Projection(prior, root, seen)
    return FunctionPosterior(network, likelihood, inducing, points, prior, totals, 1.0, projection).prepare()


def _alone(what: str) -> None:
    if world_size() > 1:
        raise InputError(f"{what} needs all data in one process; pass inducing=ll.Sparse(inputs=Z), which adds up.")
