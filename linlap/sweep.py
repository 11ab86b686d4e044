"""Passes over data, with the seeds the likelihood asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap import tree
from linlap.checks import is_whole
from linlap.curvature import Totals
from linlap.data import Batches
from linlap.distributed import sum_over_processes
from linlap.errors import InputError
from linlap.jacobian import Jacobian
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.inputs import count, take
from linlap.types import Inputs

T = TypeVar("T")


class DataSweep:
    """Passes over one set of data; the first one also checks the targets and counts the data.

    `root` gives Λ^½ `[n, C, r]` of outputs f, where it is not to be the likelihood's own. `shift` `[P]` moves the
    weights: outputs are then those of the linear model, and everything is counted and weighted there.
    """

    def __init__(
        self,
        network: Network,
        batches: Batches,
        likelihood: Likelihood,
        *,
        seeds: int | None = None,
        root: Callable[[Tensor], Tensor] | None = None,
        shift: Tensor | None = None,
        dense: bool = False,
        progress: bool = True,
    ) -> None:
        if seeds is not None and not is_whole(seeds):
            raise InputError(f"seeds={seeds!r}; pass a positive number of random seeds, or None for the exact ones.")
        self._network, self._batches, self._likelihood = network, batches, likelihood
        self._seeds, self._dense, self._progress = seeds, dense, progress
        self._root = likelihood.hessian_sqrt if root is None else root
        self._shift = None if shift is None else network.named(shift.to(network.dtype))
        self._totals: Totals | None = None
        self._first_pass: int | None = None
        self._seen = Totals(0, 0.0)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return self._network.shapes

    @property
    def like(self) -> Tensor:
        return self._network.vector()[:0]

    @property
    def totals(self) -> Totals:
        if self._totals is None:
            raise InputError("the data have not been gone through yet")
        return self._totals

    def sum(self, measure: Callable[[Jacobian], T], goal: str) -> T:
        """Σ over data of a measurement of the seeded Jacobian; over all processes where there are several."""
        total = self._pass(measure, goal)
        while total is None:
            total = self._pass(measure, goal)
        return sum_over_processes(total)

    def _pass(self, measure: Callable[[Jacobian], T], goal: str) -> T | None:
        """The sum over one pass; None if it is to begin again, because batches were measured in different ways.

        That happens where the data decide which layers are called: a block that is dense in one batch is then
        made so in all, each time for at least one more parameter.
        """
        total: T | None = None
        dense: frozenset[str] = frozenset()
        generator = torch.Generator(self._network.device).manual_seed(0)
        for x, y in self._parts(goal):
            columns = partial(self._columns, y=y, move=self._move(x), generator=generator)
            lin = self._network.linearize(x, columns, once=True)
            dense |= lin.dense
            part = measure(lin.jacobian)
            if total is not None and not tree.alike(total, part):
                self._network.fall_back(dense)
                return None
            total = part if total is None else tree.add_into(total, part)
        if total is None:
            raise InputError("the data are empty: no batch came. Pass at least one input.")
        return total

    def product(self, v: Tensor, goal: str) -> Tensor:
        """Σ Jᵀ Λ J v: one forward-mode and one backward pass a batch."""
        named = self._network.named(v)
        total = torch.zeros_like(v)
        for x, y in self._parts(goal):
            f = self._network.outputs(x) + self._move(x)
            self._count(f, y)
            root = self._root(f)
            change = self._network.jvp(x, named).unsqueeze(-1)
            back = self._network.vjp(x, (root @ (root.mT @ change)).squeeze(-1))
            total += torch.cat([back[name].flatten() for name in self._network.names])
        return sum_over_processes(total)

    def _move(self, x: Inputs) -> Tensor | float:
        """What the shift adds to f."""
        return 0.0 if self._shift is None else self._network.jvp(x, self._shift)

    def _columns(self, f: Tensor, y: Tensor, move: Tensor | float, generator: torch.Generator) -> Tensor:
        """Seeds `[n, r, C]`: the columns of Λ^½, or random combinations of them whose second moment is Λ."""
        f = f + move
        self._count(f, y)
        root = self._root(f)
        if self._seeds is None or self._seeds >= root.shape[-1]:
            return root.mT
        shape = (root.shape[0], root.shape[-1], self._seeds)
        signs = torch.randint(0, 2, shape, generator=generator, device=f.device).to(f.dtype) * 2 - 1
        return (root @ signs).mT / self._seeds**0.5

    def _count(self, f: Tensor, y: Tensor) -> None:
        """Count the data; on the first pass, check the targets against the outputs and add them to the totals."""
        if self._first_pass is not None:
            self._seen = replace(self._seen, count=self._seen.count + len(f))
            return
        self._likelihood.check_outputs(f.shape[1])
        y = self._likelihood.prepare(y, f)
        fit = float(self._likelihood.log_prob(y, f).double().sum())
        self._seen = Totals(self._seen.count + len(f), self._seen.log_likelihood + fit)

    def _parts(self, goal: str) -> Iterator[tuple[Inputs, Tensor]]:
        """One pass, in parts small enough for memory."""
        self._seen = Totals(0, 0.0)
        bar = tqdm(self._batches, goal, self._batches.length, leave=False, delay=1.0, disable=not self._progress)
        for x, y in bar:
            size = self._network.batch_for(x, seeds=self._seeds, dense=self._dense)
            for start in range(0, count(x), size):
                yield take(x, start, start + size), y[start : start + size]
        self._end_of_pass()

    def _end_of_pass(self) -> None:
        found = self._seen.count
        if self._first_pass is None:
            if found:
                self._first_pass, self._totals = found, sum_over_processes(self._seen)
        elif found != self._first_pass:
            raise InputError(
                f"the first pass over the data found {self._first_pass} inputs, a later one {found}; pass data that "
                "give the same inputs again each time: tensors, a Dataset, a DataLoader, or a list of batches."
            )
