"""What a Gaussian process takes from data: the inputs to keep, and what the others say of those."""

from __future__ import annotations

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.curvature import Totals
from linlap.data import Batches
from linlap.errors import InputError
from linlap.inducing import Inducing
from linlap.jacobian import Jacobian, settled
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.inputs import cat, count, map_tensors
from linlap.posteriors.points import Groups, Points, root_of
from linlap.sweep import DataSweep
from linlap.types import Inputs


def projected(
    points: Points, groups: Groups, root: Tensor, batches: Batches, likelihood: Likelihood
) -> tuple[Tensor, Totals]:
    """R⁻¹ (Σ k Λ kᵀ) R⁻ᵀ over data, and their totals."""
    root_of_data = root_of(likelihood, points.coupled)
    sweep = DataSweep(points.network, batches, likelihood, root=root_of_data, progress=points.progress)
    small = root.to(points.network.dtype)

    def measure(jacobian: Jacobian) -> Tensor:
        k = points.cross(groups, settled(jacobian, points.coupled))
        white = torch.linalg.solve_triangular(small, k, upper=False)
        return (white @ white.mT).double()

    return sweep.sum(measure, "projecting the data"), sweep.totals


def chosen(
    network: Network, batches: Batches, likelihood: Likelihood, inducing: Inducing, progress: bool
) -> tuple[Inputs, Tensor, int]:
    """The inputs with the largest scores, in the order of the data; log p(y | f) of each; how many data there are."""
    wanted, scores = inducing.wanted, inducing.scores()
    xs: list[Inputs] = []
    parts: list[Tensor] = []
    seen = 0
    bar = tqdm(batches, "choosing inputs", batches.length, leave=False, delay=1.0, disable=not progress)
    for x, y in bar:
        f = network.outputs(x)
        likelihood.check_outputs(f.shape[1])
        fits = likelihood.log_prob(likelihood.prepare(y, f), f).double().cpu()
        xs.append(x)
        parts.append(torch.stack([scores(likelihood, f), fits]))
        seen += count(x)
        if wanted is not None and sum(map(count, xs)) > max(4 * wanted, 4096):
            xs, parts = _best(xs, parts, wanted)
    if not seen:
        raise InputError("the data are empty: no batch came. Pass at least one input.")
    if wanted is not None:
        if wanted > seen:
            raise InputError(f"{inducing} asks for {wanted} inputs, but there are {seen} data; pass {seen} or fewer.")
        xs, parts = _best(xs, parts, wanted)
    return cat(xs), torch.cat(parts, dim=1)[1], seen


def _best(xs: list[Inputs], parts: list[Tensor], wanted: int) -> tuple[list[Inputs], list[Tensor]]:
    whole, x = torch.cat(parts, dim=1), cat(xs)
    order = torch.argsort(whole[0], descending=True, stable=True)[:wanted].sort().values
    return [map_tensors(x, lambda t: t[order.to(t.device)])], [whole[:, order]]
