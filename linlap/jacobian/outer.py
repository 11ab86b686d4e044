"""The block of a weight in normal form: J[n, r] = Σ_s g[n, r, s] ⊗ a[n, s], k groups side by side.

a `[n, k, s, i]` are the layer's inputs, g `[n, r, k, s, o]` the seeded gradients at its output. For each
contraction there are two orders: over pairs of positions, never forming J, or over J one slice of inputs at a
time. One position is the first at its cheapest. The choice is by counted multiplications.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from linlap.jacobian.block import (
    ParameterBlock,
    add_lower,
    distinct,
    gram_of_columns,
    mirrored,
    pieces,
    squares_over_seeds,
)
from linlap.jacobian.gram import weighted_gram
from linlap.linalg import each_product, is_faster, product


class LazyRows(Protocol):
    """a `[n, k, s, i]` that is not made before it is needed, and may be used without being made."""

    @property
    def shape(self) -> torch.Size: ...

    def tensor(self) -> Tensor: ...

    def rotated(self, basis: Tensor) -> Tensor:
        """a U for one basis a group `[k, i, i]`."""

    def products(self, rows: Tensor) -> Tensor | None:
        """rows a for rows `[n, k, q, s]`, as `[n, k, q, i]`, where there is a faster way than a matrix product."""

    def split(self, size: int) -> Sequence[Tensor | LazyRows]: ...

    def to(self, dtype: torch.dtype) -> LazyRows: ...


@dataclass(frozen=True, eq=False)
class OuterBlock(ParameterBlock):
    """`inputs` are a, or know how to make it; `flip` says that the parameter's rows belong to a and its columns
    to g (transposed convolution)."""

    inputs: Tensor | LazyRows
    g: Tensor
    shape: torch.Size
    flip: bool = False

    @property
    def like(self) -> Tensor:
        return self.g

    @property
    def rows(self) -> tuple[int, int]:
        return self.g.shape[0], self.g.shape[1]

    @cached_property
    def a(self) -> Tensor:
        return self.inputs if isinstance(self.inputs, Tensor) else self.inputs.tensor()

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(k, s, o, i)."""
        k, s, i = self.inputs.shape[1:]
        return k, s, self.g.shape[-1], i

    @property
    def positions(self) -> int:
        return self.inputs.shape[2]

    def as_matrix(self, v: Tensor) -> Tensor:
        """Parameter entries `[..., p]` as matrices `[..., k, o, i]`."""
        k, _, o, i = self.sizes
        if self.flip:
            return v.reshape(*v.shape[:-1], k, i, o).mT
        return v.reshape(*v.shape[:-1], k, o, i)

    def as_entries(self, m: Tensor) -> Tensor:
        """Matrices `[..., k, o, i]` as parameter entries `[..., p]`."""
        return (m.mT if self.flip else m).flatten(-3)

    def matrices(self, out: Tensor | None = None) -> Tensor:
        """J as `[n, k, r, o, i]`, into the first entries of `out` if given."""
        (n, r), (k, _, o, i) = self.rows, self.sizes
        merged = _merged(self.g)
        direct = None if isinstance(self.inputs, Tensor) else self.inputs.products(merged)
        if direct is not None:
            return direct.reshape(n, k, r, o, i)
        left, right = merged.flatten(0, 1), self.a.flatten(0, 1)
        if len(left) == 1 and (out is None or is_faster(left)):
            return product(left[0], right[0]).view(n, k, r, o, i)
        if out is None:
            return torch.bmm(left, right).reshape(n, k, r, o, i)
        target = out[: n * k * r * o * i].view(n * k, r * o, i)
        return torch.bmm(left, right, out=target).view(n, k, r, o, i)

    def dense(self) -> Tensor:
        return self.as_entries(self.matrices().movedim(1, 2))

    def split(self, size: int) -> Iterator[OuterBlock]:
        for a, g in zip(self.inputs.split(size), self.g.split(size), strict=True):
            yield OuterBlock(a, g, self.shape, self.flip)

    def seed(self, index: int) -> OuterBlock:
        return OuterBlock(self.inputs, self.g[:, index : index + 1], self.shape, self.flip)

    def to(self, dtype: torch.dtype) -> OuterBlock:
        return OuterBlock(self.inputs.to(dtype), self.g.to(dtype), self.shape, self.flip)

    @property
    def numbers(self) -> tuple[int, int]:
        return self.inputs.shape[1:].numel(), self.g.shape[2:].numel()

    def formed(self) -> Iterator[Tensor]:
        """J `[n', k, r, o, i]` a few inputs at a time, each in the memory of the one before.

        Fresh memory for each would cost more than the product that fills it.
        """
        (n, r), (k, s, _, _) = self.rows, self.sizes
        each = r * self.size
        if is_faster(self.g) and k == 1 and each * s >= 1 << 22:
            yield from (part.matrices() for part in self.split(1))
            return
        size = pieces(n, each * self.g.element_size(), self.g.device)
        space = self.g.new_empty(size * each)
        for part in self.split(size):
            yield part.matrices(space)

    def pairs_are_cheaper(self) -> bool:
        """Whether contracting pairs of positions takes fewer multiplications than forming J and its gram."""
        r, (_, s, o, i) = self.rows[1], self.sizes
        return s * s * (o * i + r * o) + r * r * s * o <= r * s * o * i + r * r * o * i

    def jvp(self, v: Tensor) -> Tensor:
        out = torch.einsum("nksi,mkoi->nmkso", self.a, self.as_matrix(v))
        return (self.g.flatten(2) @ out.flatten(2).mT).movedim(-1, 0)

    def vjp(self, u: Tensor) -> Tensor:
        weighted = torch.einsum("nr,nrkso->nkso", u, self.g)
        return self.as_entries(torch.einsum("nkso,nksi->koi", weighted, self.a))

    def gram(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        return self.gram_matrix(self.as_matrix(weights), diagonal)

    def gram_matrix(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        """`gram` for weights given as matrices `[k, o, i]`."""
        if self.pairs_are_cheaper():
            return self._gram_by_pairs(weights, diagonal)
        return torch.cat([weighted_gram(j, weights, diagonal) for j in self.formed()])

    def gram_once(self, weights: Tensor, diagonal: bool = False, bias: Tensor | None = None) -> Tensor:
        """`gram_matrix` at a single position; `bias` `[o]` weights a further input that is always 1."""
        a, g = self.a[:, :, 0], distinct(self.g)[:, :, :, 0]  # [n, k, i], [n or 1, r, k, o]
        scale = _times(a.square(), weights.mT, 1)  # [n, k, o]
        scale = scale if bias is None else scale + bias
        if diagonal and len(g) < len(scale):
            return product(scale.flatten(1), g[0].flatten(1).square().mT)
        if diagonal:
            return torch.einsum("nrko,nko->nr", g.square(), scale)
        flat = g.reshape(*g.shape[:2], -1)
        return (flat * scale.reshape(len(a), 1, -1)) @ flat.mT

    def _gram_by_pairs(self, weights: Tensor, diagonal: bool) -> Tensor:
        if self.positions == 1:
            return self.gram_once(weights, diagonal)
        products = self.a.unsqueeze(3) * self.a.unsqueeze(2)  # [n, k, s, t, i]
        scale = products @ weights.mT.unsqueeze(1)  # [n, k, s, t, o]
        moved = torch.einsum("nksto,ndkto->ndkso", scale, self.g)
        if diagonal:
            return (self.g * moved).sum((2, 3, 4))
        return self.g.flatten(2) @ moved.flatten(2).mT

    def square_sum(self) -> Tensor:
        if self.positions == 1:
            a, g = self.a[:, :, 0], self.g[:, :, :, 0]
            powers = squares_over_seeds(g)  # [n, k, o]
            left, right = powers.permute(1, 2, 0), a.square().transpose(0, 1)
            return self.as_entries(each_product(left, right))
        k, _, o, i = self.sizes
        total = self.g.new_zeros(k, o, i)
        for j in self.formed():
            total += j.square_().sum((0, 2))
        return self.as_entries(total)

    def rotated(self, a_basis: Tensor | None, g_basis: Tensor | None) -> OuterBlock:
        """The block in another orthogonal basis: a U_a and g U_g with bases `[k, i, i]` and `[k, o, o]`."""
        a = self.inputs
        if a_basis is not None:
            a = _times(a, a_basis, 1) if isinstance(a, Tensor) else a.rotated(a_basis)
        g = self.g if g_basis is None else _turned(distinct(self.g), g_basis).expand(self.g.shape)
        return OuterBlock(a, g, self.shape, self.flip)

    def factors(self, sharing: str) -> tuple[Tensor, Tensor]:
        """Σ a aᵀ `[k, i, i]` and Σ g gᵀ `[k, o, o]` over inputs, seeds and (unless reduced) positions."""
        a = self.a.mean(2, keepdim=True) if sharing == "reduce" else self.a
        return _second_moment(a.movedim(1, 0)), self.g_factor(sharing)

    def g_factor(self, sharing: str) -> Tensor:
        """The second of the factors alone."""
        g = self.g.sum(3, keepdim=True) if sharing == "reduce" else self.g
        return _second_moment(g.movedim(2, 0))

    @classmethod
    def join(cls, parts: Sequence[OuterBlock]) -> OuterBlock:
        if len(parts) == 1:
            return parts[0]
        a = torch.cat([part.a for part in parts], dim=2)
        g = torch.cat([part.g for part in parts], dim=3)
        return cls(a, g, parts[0].shape, parts[0].flip)


def _merged(g: Tensor) -> Tensor:
    """g `[n, r, k, s, o]` as `[n, k, r·o, s]`, copying no more than the memory order asks for."""
    n, r, k, s, o = g.shape
    if g.stride(-1) == 1 and s > 1:
        return g.permute(0, 2, 3, 1, 4).reshape(n, k, s, r * o).mT
    return g.permute(0, 2, 1, 4, 3).reshape(n, k, r * o, s)


def _turned(g: Tensor, basis: Tensor) -> Tensor:
    """g U `[n, r, k, s, o]`; at a last layer g may be the identity, whose product is known."""
    n, r, k, s, o = g.shape
    if (n, k, s) == (1, 1, 1) and r == o and torch.equal(g[0, :, 0, 0], torch.eye(o, dtype=g.dtype, device=g.device)):
        return basis.reshape(g.shape)
    return _times(g, basis, 2)


def _times(rows: Tensor, basis: Tensor, group_axis: int) -> Tensor:
    """Rows `[..., d]` with their groups on some axis, times one matrix a group `[k, d, e]`, as one product if k = 1.

    A single product wants its rows merged; they are, in the order they lie in memory, so that nothing is copied.
    """
    if basis.shape[0] > 1:
        moved = rows.movedim(group_axis, 0)
        return (moved.flatten(1, -2) @ basis).reshape(*moved.shape[:-1], basis.shape[-1]).movedim(0, group_axis)
    if rows.stride(-1) != 1 and rows.shape[-2] > 1 and rows.stride(-2) == 1:
        return (basis[0].mT @ rows.mT).mT
    order = _memory_order(rows)
    flat = rows.permute(*order, -1)
    done = product(flat.reshape(-1, rows.shape[-1]), basis[0]).reshape(*flat.shape[:-1], basis.shape[-1])
    back = sorted(range(len(order)), key=order.__getitem__)
    return done.permute(*back, -1)


def _memory_order(rows: Tensor) -> list[int]:
    """The axes but the last, from the widest step in memory to the narrowest."""
    strides = rows.stride()
    return sorted(range(rows.ndim - 1), key=lambda axis: -strides[axis])


def _second_moment(x: Tensor) -> Tensor:
    """Σ x xᵀ for rows `[k, ..., s, d]` as `[k, d, d]`, without turning round what lies with positions last."""
    if x.stride(-1) == 1 or x.shape[-2] == 1 or x.device.type != "cpu":
        if len(x) == 1:
            x = x[0].permute(*_memory_order(x[0]), -1).unsqueeze(0)  # rows may come in any order
        return gram_of_columns(x.reshape(x.shape[0], -1, x.shape[-1]))
    columns = x.mT.reshape(x.shape[0], -1, x.shape[-1], x.shape[-2])
    total = x.new_zeros(x.shape[0], x.shape[-1], x.shape[-1])
    for part in columns.unbind(1):
        add_lower(total, part.mT)
    return mirrored(total)
