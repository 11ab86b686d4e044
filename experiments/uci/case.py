"""One set and one network: its trained weights over splits and δ, side by side, as linear models in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from experiments.uci.config import Config
from experiments.uci.problems import Splits
from experiments.uci.stack import Layer, Networks, chunks
from linlap.network.memory import default_budget
from linlap.refine.problem import Problem


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the networks: their linear models at the data, and J `[M, n·C, P]` and f `[M, n, C]` at new inputs."""

    networks: Networks
    problem: Problem
    layers: list[Layer]
    x: Tensor
    J: Tensor
    f: Tensor


@dataclass(frozen=True, eq=False)
class Case:
    """M = splits × δ networks, all δ of a split one after the other."""

    splits: Splits
    networks: Networks
    config: Config

    @property
    def device(self) -> torch.device:
        return self.networks.theta.device

    @cached_property
    def x_new(self) -> Tensor:
        """Validation inputs, then test inputs."""
        return torch.cat([self.splits.valid[0], self.splits.test[0]], 1)

    def each(self, of_splits: Tensor) -> Tensor:
        """What each split has, once for each of its networks."""
        return of_splits.repeat_interleave(len(self.networks) // len(of_splits), 0)

    def precision(self) -> Tensor:
        """δ of each network `[M]`."""
        d = torch.tensor(self.config.precisions, dtype=torch.float64, device=self.device)
        return d.repeat(len(self.networks) // len(d))

    def parts(self, extra: float = 0.0) -> Iterator[Part]:
        """A few networks at a time, as memory allows; `extra` bytes each besides the linear models."""
        n, c = self.splits.count + self.x_new.shape[1], self.splits.of.outputs
        rows, p = self.splits.count * c, self.networks.theta.shape[1]
        side = rows if 3 * rows < p else p  # of what is factorised, at most
        each = 8 * (3 * n * c * p + 4 * side**2 + 2 * side * n * c) + extra
        for part in chunks(len(self.networks), each, default_budget(self.device)):
            yield self._part(part)

    def _part(self, part: slice) -> Part:
        networks = self.networks[part].double()
        (x, y), new = self.splits.train, self.each(self.x_new)[part].double()
        x, y = self.each(x)[part].double(), self.each(y)[part]
        labels = y.double().unsqueeze(-1) if self.splits.of.classes == 2 else y
        theta, d = networks.theta, self.precision()[part].unsqueeze(-1).expand_as(networks.theta)
        problem = Problem(
            self.splits.likelihood, networks.jacobian(x), networks.outputs(x), labels, theta, d.contiguous(), theta
        )
        return Part(networks, problem, networks.layers(x), new, networks.jacobian(new), networks.outputs(new))
