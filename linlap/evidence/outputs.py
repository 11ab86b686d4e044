"""The curvature and the squared residuals of each output by itself, from one pass over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from linlap.curvature import Curvature, KronCurvature, LowRank, Totals
from linlap.curvature.base import Shapes
from linlap.data import Batches, as_batches
from linlap.distributed import sum_over_processes
from linlap.errors import InputError
from linlap.evidence.groups import Over
from linlap.jacobian import Jacobian
from linlap.likelihoods import Gaussian
from linlap.network.inputs import count, take
from linlap.posteriors import WeightPosterior
from linlap.sweep import DataSweep
from linlap.types import Inputs

T = TypeVar("T")


def by_output(
    posterior: WeightPosterior, likelihood: Gaussian, over: Over, data: Any, batch_size: int
) -> tuple[list[Curvature], Tensor]:
    """The curvature of each output, which add up to the whole, and sums of its squared residuals `[C]`."""
    network, structure = posterior.network, posterior.structure
    _check_parts(posterior, over)
    watched = _Watched(as_batches(data, batch_size, network.device), posterior)
    batches = Batches(watched, network.device, watched.batches.length)
    with torch.inference_mode(False), torch.no_grad():
        whole = DataSweep(network, batches, likelihood, dense=structure.forms_dense_rows, progress=False)
        known: list[dict[str, Any]] = []
        parts = [structure.fit(_OneOutput(whole, 0, known))]
        outputs = len(known[0])
        parts += [structure.fit(_OneOutput(whole, index, known)) for index in range(1, outputs)]
    squares = sum_over_processes(watched.squares)
    _check_same(posterior, likelihood, whole.totals, squares)
    return parts, squares


def _check_parts(posterior: WeightPosterior, over: Over) -> None:
    """That the curvature is a sum over outputs."""
    curvature, structure = posterior.curvature, posterior.structure
    if isinstance(structure, LowRank) or (isinstance(curvature, KronCurvature) and curvature.corrected):
        raise InputError(
            f"noise='output' with {structure}, whose parts by output do not add up; pass noise='scalar', or fit with "
            "ll.Kron(), ll.Full() or ll.Diagonal()."
        )
    if isinstance(curvature, KronCurvature) and over == "weight":
        raise InputError(
            "over='weight' with noise='output' under Kron: the eigenvectors that the prior is projected on turn with "
            "the noise; pass over='layer', or fit with ll.Full() or ll.Diagonal()."
        )


def _check_same(posterior: WeightPosterior, likelihood: Gaussian, totals: Totals, squares: Tensor) -> None:
    """That these are the data of the fit: as many, and fitted as well."""
    fitted, scale = posterior.curvature.totals, likelihood.scale(squares)
    each = 0.5 * (squares / scale.square()).sum() + totals.count * (scale.log() + 0.9189385332046727).sum()
    if fitted.count != totals.count or abs(float(each) + fitted.log_likelihood) > 1e-3 * (1 + float(each.abs())):
        raise InputError(
            f"Evidence(data=...) holds {totals.count} data with log likelihood {-float(each):.6g}; the posterior was "
            f"fitted to {fitted.count} with {fitted.log_likelihood:.6g}. Pass the data of the fit."
        )


@dataclass
class _Watched:
    """Batches, with the squares of what the mean leaves of their targets added up as they go by."""

    batches: Batches
    posterior: WeightPosterior
    squares: Tensor = field(default_factory=lambda: torch.zeros(0, device="cpu"))

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        self.squares = torch.zeros((), dtype=torch.float64, device=self.posterior.network.device)
        for x, y in self.batches:
            network, shift = self.posterior.network, self.posterior.shift
            network.prepare(x)
            size = network.batch_for(x)
            for start in range(0, count(x), size):
                part = take(x, start, start + size)
                f = network.outputs(part)
                if shift is not None:
                    f = f + network.jvp(part, network.named(shift.to(f.dtype)))
                target = self.posterior.likelihood.prepare(y[start : start + size], f)
                self.squares = self.squares + (target - f).double().square().sum(0)
            yield x, y


@dataclass
class _OneOutput:
    """A sweep as one output sees it. The first to ask has the data gone through for all of them."""

    sweep: DataSweep
    index: int
    known: list[dict[str, Any]]
    asked: int = 0

    @property
    def shapes(self) -> Shapes:
        return self.sweep.shapes

    @property
    def like(self) -> Tensor:
        return self.sweep.like

    @property
    def totals(self) -> Totals:
        return self.sweep.totals

    def sum(self, measure: Callable[[Jacobian], T], goal: str) -> T:
        def each(jacobian: Jacobian) -> dict[str, T]:
            held = replace(jacobian, blocks=dict(jacobian.blocks.items()))
            return {str(c): measure(held.seed(c)) for c in range(held.rows[1])}

        if self.asked == len(self.known):
            self.known.append(self.sweep.sum(each, f"{goal}, output by output"))
        self.asked += 1
        found: T = self.known[self.asked - 1][str(self.index)]
        return found

    def product(self, v: Tensor, goal: str) -> Tensor:
        raise InputError("a structure that is found by products has no parts by output; pass noise='scalar'.")
