"""What a block of a Jacobian is: the derivative of seeded outputs with respect to one parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from linlap.linalg import each_product, is_faster, product

S = TypeVar("S", bound="Block")
B = TypeVar("B", bound="ParameterBlock")


class Block(ABC):
    """J `[n, r, p]`: rows for n inputs and r seeds, columns for the p entries of a parameter.

    Every contraction is defined by `dense()`; the other methods give the same numbers without
    forming it where the block has structure.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """p."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """One of the block's tensors, for its dtype and device."""

    @property
    @abstractmethod
    def rows(self) -> tuple[int, int]:
        """(n, r)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """J, `[n, r, p]`."""

    @abstractmethod
    def jvp(self, v: Tensor) -> Tensor:
        """J v for m weight vectors `[m, p]`, as `[m, n, r]`."""

    @abstractmethod
    def vjp(self, u: Tensor) -> Tensor:
        """Σ over inputs and seeds of u J for u `[n, r]`, as `[p]`."""

    @abstractmethod
    def gram(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        """J diag(weights) Jᵀ per input, `[n, r, r]`, or its diagonal `[n, r]`; `weights` `[p]` ≥ 0."""

    @abstractmethod
    def square_sum(self) -> Tensor:
        """Σ over inputs and seeds of J∘J, `[p]`."""

    @abstractmethod
    def split(self, size: int) -> Iterator[Block]:
        """The same block in pieces of at most `size` inputs."""

    @abstractmethod
    def seed(self: S, index: int) -> S:
        """The rows of one seed, `[n, 1, p]`."""

    @abstractmethod
    def to(self: S, dtype: torch.dtype) -> S:
        """The same block in another dtype."""


class ParameterBlock(Block):
    """The block of one parameter, whose entries in order are the columns."""

    shape: torch.Size

    @property
    def size(self) -> int:
        return self.shape.numel()

    @property
    @abstractmethod
    def numbers(self) -> tuple[int, int]:
        """How many numbers it is made of for one input: those all seeds share, and those of each seed."""

    @classmethod
    @abstractmethod
    def join(cls: type[B], parts: Sequence[B]) -> B:
        """The block of a parameter that several layer calls used: the sum of theirs."""


def gram_of(features: Tensor, diagonal: bool = False) -> Tensor:
    """Φ Φᵀ per input for features `[n, r, q]`: `[n, r, r]`, or its diagonal `[n, r]`."""
    if diagonal:
        return features.square().sum(-1)
    return each_product(features, features.mT)


def distinct(rows: Tensor) -> Tensor:
    """Rows `[n, ...]` that are one for all n inputs, as at a last layer, as `[1, ...]`; others as given."""
    return rows[:1] if rows.stride(0) == 0 else rows


def squares_over_seeds(j: Tensor) -> Tensor:
    """Σ over r of J∘J for J `[n, r, ...]`, as `[n, ...]`."""
    if j.device.type != "cpu":
        return j.square().sum(1)
    total = torch.zeros_like(j[:, 0])
    for seed in j.unbind(1):  # no squares as large as J itself: fresh memory costs more than the arithmetic
        total.addcmul_(seed, seed)
    return total


def gram_of_columns(rows: Tensor) -> Tensor:
    """Xᵀ X for rows `[k, m, d]` or `[m, d]`."""
    if rows.ndim == 2:
        return gram_of_columns(rows.unsqueeze(0))[0]
    if rows.device.type != "cpu":
        return rows.mT @ rows
    return mirrored(add_lower(rows.new_zeros(len(rows), rows.shape[-1], rows.shape[-1]), rows))


def add_lower(total: Tensor, rows: Tensor) -> Tensor:
    """Adds Xᵀ X to `total` `[k, d, d]` in place, leaving out most of what lies above the diagonal."""
    steps = _steps(total.shape[-1])
    if len(total) == 1 and is_faster(rows):
        columns = rows[0].mT.contiguous()  # strips of it are packed already
        for start, stop in steps:
            total[0, start:stop, :stop] += product(columns[start:stop], columns[:stop].mT)
        return total
    for start, stop in steps:
        total[:, start:stop, :stop].baddbmm_(rows[..., start:stop].mT, rows[..., :stop])
    return total


def mirrored(total: Tensor) -> Tensor:
    """What `add_lower` left out, filled in by symmetry, in place."""
    for start, stop in _steps(total.shape[-1]):
        total[:, :start, start:stop] = total[:, start:stop, :start].mT
    return total


def _steps(d: int) -> list[tuple[int, int]]:
    """Four strips of a large symmetric matrix, so that three eighths of the products are saved; one of a small one."""
    parts = 4 if d >= 256 else 1
    return [(d * part // parts, d * (part + 1) // parts) for part in range(parts)]


def pieces(n: int, bytes_each: int, device: torch.device) -> int:
    """How many inputs to contract at a time so that an intermediate stays small.

    On a CPU small means near the caches, which is also what is fastest; on a GPU, enough to fill it.
    """
    budget = 1 << 30 if device.type == "cuda" else 6 << 20
    return max(1, min(n, budget // max(1, bytes_each)))
