"""From what a refinement found back to posteriors."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from linlap.curvature import Diagonal, Full, Totals, diagonal_of_rows, full_of_rows
from linlap.data import Batches
from linlap.posteriors import WeightPosterior
from linlap.refine.spaces import Space, root_of
from linlap.refine.stored import Stored
from linlap.sweep import DataSweep


def posteriors_of(group: Stored, space: Space, mean: Tensor, blocks: Tensor, diagonal: bool) -> list[WeightPosterior]:
    """N(m, (Jᵀ L J + D)⁻¹) of each problem of a group, by coordinates of m and L; or with the diagonal of Jᵀ L J."""
    problem = space.problem
    sides = mean.shape[:-1].numel()
    shift = (space.weights(mean) - problem.theta).reshape(sides, -1)
    fit = problem.log_likelihood(space.outputs(mean)).reshape(sides)
    rows = (root_of(blocks).mT @ problem.J.unflatten(-2, problem.f.shape[-2:])).reshape(sides, -1, problem.size)
    found = []
    for index, posterior in enumerate(group.posteriors):
        totals = Totals(posterior.curvature.totals.count, float(fit[index]))
        of_rows = diagonal_of_rows if diagonal else full_of_rows
        curvature = of_rows(posterior.network.shapes, totals, rows[index])
        structure = Diagonal() if diagonal else Full()
        found.append(replace(posterior, structure=structure, curvature=curvature, shift=shift[index]))
    return found


def laplace_at(
    posterior: WeightPosterior, shift: Tensor, batches: Batches, seeds: int | None, progress: bool
) -> WeightPosterior:
    """The posterior's own structure fitted anew where the shift leads, in one pass over the data."""
    network, structure = posterior.network, posterior.structure
    sweep = DataSweep(
        network,
        batches,
        posterior.likelihood,
        seeds=seeds,
        shift=shift,
        dense=structure.forms_dense_rows,
        progress=progress,
    )
    curvature = structure.fit(sweep)
    return replace(posterior, curvature=curvature, shift=shift)
