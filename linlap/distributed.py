"""Several processes with a share of the data each: sums over all of them."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from linlap import tree

T = TypeVar("T")


def world_size() -> int:
    """How many processes share the work."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_processes(value: T) -> T:
    """The sum of a tree of tensors and numbers over the processes of `torch.distributed`; alone, the value itself."""
    if world_size() == 1:
        return value

    def reduced(leaf: Tensor | float, _: Tensor | float) -> Tensor | float:
        if isinstance(leaf, Tensor):
            total = leaf.contiguous()
            dist.all_reduce(total)
            return total
        number = torch.tensor(float(leaf), dtype=torch.float64)
        if dist.get_backend() == "nccl":
            number = number.cuda()
        dist.all_reduce(number)
        return type(leaf)(number.item())

    return tree.zip_map(reduced, value, value)
