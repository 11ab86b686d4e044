"""The block of a weight in normal form: J[n, r] = Σ_s g[n, r, s] ⊗ a[n, s], k groups side by side.

a `[n, k, s, i]` are the layer's inputs, g `[n, r, k, s, o]` the seeded gradients at its output. For each
contraction there are two orders: over pairs of positions, never forming J, or over J one slice of inputs at a
time. One position is the first at its cheapest. The choice is by counted multiplications.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.jacobian.block import ParameterBlock, gram_of, pieces


@dataclass(frozen=True, eq=False)
class OuterBlock(ParameterBlock):
    """`flip` says that the parameter's rows belong to a and its columns to g (transposed convolution)."""

    a: Tensor
    g: Tensor
    shape: torch.Size
    flip: bool = False

    @property
    def like(self) -> Tensor:
        return self.g

    @property
    def rows(self) -> tuple[int, int]:
        return self.g.shape[0], self.g.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(k, s, o, i)."""
        k, s, i = self.a.shape[1:]
        return k, s, self.g.shape[-1], i

    @property
    def positions(self) -> int:
        return self.a.shape[2]

    def as_matrix(self, v: Tensor) -> Tensor:
        """Parameter entries `[..., p]` as matrices `[..., k, o, i]`."""
        k, _, o, i = self.sizes
        if self.flip:
            return v.reshape(*v.shape[:-1], k, i, o).mT
        return v.reshape(*v.shape[:-1], k, o, i)

    def as_entries(self, m: Tensor) -> Tensor:
        """Matrices `[..., k, o, i]` as parameter entries `[..., p]`."""
        return (m.mT if self.flip else m).flatten(-3)

    def matrices(self) -> Tensor:
        """J as `[n, k, r, o, i]`."""
        (n, r), (k, _, o, i) = self.rows, self.sizes
        return (_merged(self.g) @ self.a).reshape(n, k, r, o, i)

    def dense(self) -> Tensor:
        return self.as_entries(self.matrices().movedim(1, 2))

    def split(self, size: int) -> Iterator[OuterBlock]:
        for a, g in zip(self.a.split(size), self.g.split(size), strict=True):
            yield OuterBlock(a, g, self.shape, self.flip)

    def slices(self) -> Iterator[OuterBlock]:
        """Pieces whose J is small enough to form."""
        (n, r) = self.rows
        return self.split(pieces(n, r * self.size * self.a.element_size(), self.a.device))

    def pairs_are_cheaper(self) -> bool:
        """Whether contracting pairs of positions takes fewer multiplications than forming J and its gram."""
        r, (_, s, o, i) = self.rows[1], self.sizes
        return s * s * (o * i + r * o) + r * r * s * o <= r * s * o * i + r * r * o * i

    def jvp(self, v: Tensor) -> Tensor:
        w = self.as_matrix(v)  # [m, k, o, i]
        out = self.a.unsqueeze(0) @ w.mT.unsqueeze(1)  # [m, n, k, s, o]
        (n, r) = self.rows
        flat = self.g.reshape(n, r, -1)
        return (flat @ out.reshape(len(v), n, -1, 1)).squeeze(-1)

    def vjp(self, u: Tensor) -> Tensor:
        weighted = torch.einsum("nr,nrkso->nkso", u, self.g)
        return self.as_entries(torch.einsum("nkso,nksi->koi", weighted, self.a))

    def gram(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        return self.gram_matrix(self.as_matrix(weights), diagonal)

    def gram_matrix(self, weights: Tensor, diagonal: bool = False) -> Tensor:
        """`gram` for weights given as matrices `[k, o, i]`."""
        if self.pairs_are_cheaper():
            return self._gram_by_pairs(weights, diagonal)
        root = weights.sqrt().unsqueeze(1)  # [k, 1, o, i]
        done = [gram_of(_stacked(part.matrices().mul_(root)), diagonal) for part in self.slices()]
        return torch.cat(done)

    def _gram_by_pairs(self, weights: Tensor, diagonal: bool) -> Tensor:
        if self.positions == 1:
            a, g = self.a[:, :, 0], self.g[:, :, :, 0]  # [n, k, i], [n, r, k, o]
            scale = (a.square().transpose(0, 1) @ weights.mT).transpose(0, 1)  # [n, k, o]
            if diagonal:
                return torch.einsum("nrko,nko->nr", g.square(), scale)
            flat = g.reshape(*g.shape[:2], -1)
            return (flat * scale.reshape(len(a), 1, -1)) @ flat.mT
        products = self.a.unsqueeze(3) * self.a.unsqueeze(2)  # [n, k, s, t, i]
        scale = products @ weights.mT.unsqueeze(1)  # [n, k, s, t, o]
        moved = torch.einsum("nksto,ndkto->ndkso", scale, self.g)
        if diagonal:
            return (self.g * moved).sum((2, 3, 4))
        return self.g.flatten(2) @ moved.flatten(2).mT

    def square_sum(self) -> Tensor:
        if self.positions == 1:
            a, g = self.a[:, :, 0], self.g[:, :, :, 0]
            powers = g.square().sum(1)  # [n, k, o]
            return self.as_entries(powers.permute(1, 2, 0) @ a.square().transpose(0, 1))
        total = self.a.new_zeros(self.sizes[0], *self.sizes[2:])
        for part in self.slices():
            total += part.matrices().square_().sum((0, 2))
        return self.as_entries(total)

    def rotated(self, a_basis: Tensor | None, g_basis: Tensor | None) -> OuterBlock:
        """The block in another orthogonal basis: a U_a and g U_g with bases `[k, i, i]` and `[k, o, o]`."""
        a = self.a if a_basis is None else self.a @ a_basis
        g = self.g if g_basis is None else _rotate(self.g, g_basis)
        return OuterBlock(a, g, self.shape, self.flip)

    def factors(self, sharing: str) -> tuple[Tensor, Tensor]:
        """Σ a aᵀ `[k, i, i]` and Σ g gᵀ `[k, o, o]` over inputs, seeds and (unless reduced) positions."""
        a, g = self.a, self.g
        if sharing == "reduce":
            a, g = a.mean(2, keepdim=True), g.sum(3, keepdim=True)
        return _second_moment(a.movedim(1, 0)), _second_moment(g.movedim(2, 0))

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


def _stacked(j: Tensor) -> Tensor:
    """J `[n, k, r, o, i]` as features `[n, r, k·o·i]`."""
    return j.flatten(3).transpose(1, 2).flatten(2)


def _rotate(g: Tensor, basis: Tensor) -> Tensor:
    """g `[n, r, k, s, o]` times a basis `[k, o, o]`, keeping the memory order that the product reads best."""
    if g.shape[3] > 1 and g.stride(3) == 1:
        return (basis.mT @ g.mT).mT
    if basis.shape[0] == 1:
        return torch.matmul(g, basis[0])
    return g @ basis


def _second_moment(rows: Tensor) -> Tensor:
    """Σ x xᵀ for rows `[k, ..., d]`, as `[k, d, d]`."""
    flat = rows.reshape(rows.shape[0], -1, rows.shape[-1])
    return flat.mT @ flat
