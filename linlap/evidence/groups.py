"""Which weights share a prior precision while it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from linlap.prior import Prior

Over = Literal["scalar", "layer", "weight"]


@dataclass(frozen=True, eq=False)
class Groups:
    """k groups of weights; with logarithms `[k]` of their precisions there goes a prior."""

    over: Over
    shapes: Mapping[str, torch.Size]
    device: torch.device

    @cached_property
    def index(self) -> Tensor:
        """The group of each weight, `[P]`."""
        sizes = torch.tensor([shape.numel() for shape in self.shapes.values()], device=self.device)
        if self.over == "scalar":
            return torch.zeros(int(sizes.sum()), dtype=torch.long, device=self.device)
        if self.over == "weight":
            return torch.arange(int(sizes.sum()), device=self.device)
        return torch.arange(len(sizes), device=self.device).repeat_interleave(sizes)

    @cached_property
    def by_parameter(self) -> dict[str, Tensor]:
        """The groups of each parameter: one number, or under "weight" one an entry."""
        pieces = self.index.split([shape.numel() for shape in self.shapes.values()])
        alone = self.over == "weight"
        return {name: piece if alone else piece[0] for name, piece in zip(self.shapes, pieces, strict=True)}

    @property
    def count(self) -> int:
        """k."""
        return int(self.index.max()) + 1

    def sums(self, v: Tensor) -> Tensor:
        """Sums by group `[k, ...]` of something for each weight `[P, ...]`."""
        return v.new_zeros(self.count, *v.shape[1:]).index_add(0, self.index, v)

    def precisions(self, d: Tensor, temperature: float | Tensor = 1.0) -> Prior:
        """The prior with precisions d `[k]`; differentiable in them."""
        if self.over == "weight":
            return Prior(d, temperature)
        if self.over == "layer":
            return Prior(dict(zip(self.shapes, d.unbind(), strict=True)), temperature)
        return Prior(d[0], temperature)

    def chosen(self, d: Tensor, temperature: float | Tensor) -> Prior:
        """The same with plain numbers where there is one for all."""
        if self.over == "weight":
            return Prior(d, temperature)
        if self.over == "layer":
            return Prior({name: float(one) for name, one in zip(self.shapes, d, strict=True)}, temperature)
        return Prior(float(d[0]), temperature)

    def start(self, prior: Prior) -> Tensor:
        """Logarithms of a prior's precisions, averaged over each group, `[k]`."""
        values = prior.by_parameter(self.shapes, self.device)
        flat = torch.cat([values[name].detach().expand(shape.numel()) for name, shape in self.shapes.items()])
        return self.sums(flat.log()) / self.sums(torch.ones_like(flat))

    def of_weight(self, i: int) -> str:
        """A group in words, by its number."""
        if self.over == "scalar":
            return "all weights"
        names = list(self.shapes)
        if self.over == "layer":
            return names[i]
        for name, shape in self.shapes.items():
            if i < shape.numel():
                return name
            i -= shape.numel()
        raise IndexError(i)
