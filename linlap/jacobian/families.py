"""J P⁻¹ Jᵀ under several precisions P at once: those of one posterior under several priors.

Such precisions differ in their eigenvalues only, or do so group by group: the Jacobian is rotated into their eigenbases
once for all of them. Where the bases differ as well (priors that differ between weights, with a full or a low-rank
curvature), precisions are taken one by one, of the same Jacobian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.jacobian.block import Block, pieces
from linlap.jacobian.covariance import covariance
from linlap.jacobian.dense import DenseBlock
from linlap.jacobian.jacobian import Jacobian
from linlap.jacobian.lookup import LookupBlock
from linlap.jacobian.many import by_positions, formed_grams, grams, lookup_grams, outer_grams
from linlap.jacobian.outer import OuterBlock
from linlap.linalg import (
    SPD,
    BlockDiagonal,
    Dense,
    Diagonal,
    Kronecker,
    KroneckerLayer,
    LowRank,
    Spectral,
    product,
    rounded,
)


class Family(ABC):
    """Several precisions of the same weights, ready for contractions with Jacobians of one dtype."""

    @abstractmethod
    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        """J P⁻¹ Jᵀ of each input under each precision, `[m, n, r, r]`, or its diagonals `[m, n, r]`."""


def family(operators: Iterable[SPD], dtype: torch.dtype) -> Family:
    """Of operators in float64, which may be made one after the other: of each only what is its own is kept."""
    bases: Bases = {}
    return _family([_light(operator, dtype, bases) for operator in operators])


Bases = dict[int, tuple[Tensor, Tensor]]
"""Eigenvectors and the same in the working dtype, by the identity of the former."""


def _light(operator: SPD, dtype: torch.dtype, bases: Bases) -> SPD:
    """The operator as contractions use it; eigenvectors that several have in common are the same tensor in all."""
    if isinstance(operator, BlockDiagonal):
        return BlockDiagonal({names: _light(part, dtype, bases) for names, part in operator.blocks.items()})
    if isinstance(operator, KroneckerLayer):
        return KroneckerLayer(_light_kronecker(operator.weight, dtype, bases), operator.bias.to(dtype))
    if isinstance(operator, Kronecker):
        return _light_kronecker(operator, dtype, bases)
    if isinstance(operator, Spectral):
        return Spectral(_shared(operator.vectors, dtype, bases), operator.values.to(dtype))
    return operator.working(dtype)


def _light_kronecker(operator: Kronecker, dtype: torch.dtype, bases: Bases) -> Kronecker:
    left = None if operator.left is None else _shared(operator.left, dtype, bases)
    right = None if operator.right is None else _shared(operator.right, dtype, bases)
    return Kronecker(left, right, operator.values.to(dtype))


def _shared(vectors: Tensor, dtype: torch.dtype, bases: Bases) -> Tensor:
    if id(vectors) not in bases:
        bases[id(vectors)] = vectors, rounded(vectors, dtype)
    return bases[id(vectors)][1]


def _family(operators: Sequence[SPD]) -> Family:
    kinds: dict[Hashable, list[int]] = {}
    for place, operator in enumerate(operators):
        kinds.setdefault(_kind(operator), []).append(place)
    if len(kinds) == 1:
        return _of_one_kind(operators)
    parts = [(tuple(places), _of_one_kind([operators[k] for k in places])) for places in kinds.values()]
    return _Mixed(tuple(parts))


def _kind(operator: SPD) -> Hashable:
    """The same for operators that differ in their eigenvalues alone."""
    if isinstance(operator, BlockDiagonal):
        return BlockDiagonal, tuple(operator.blocks)
    if isinstance(operator, KroneckerLayer):
        return KroneckerLayer, _kind(operator.weight)
    if isinstance(operator, Kronecker):
        return Kronecker, id(operator.left), id(operator.right)
    if isinstance(operator, Spectral):
        return Spectral, id(operator.vectors)
    if isinstance(operator, LowRank) and bool((operator.scale == operator.scale[0]).all()):
        return LowRank, id(operator.vectors)
    return Diagonal if isinstance(operator, Diagonal) else SPD


def _of_one_kind(operators: Sequence[SPD]) -> Family:
    first = operators[0]
    if _kind(first) is SPD:
        return _Alone(tuple(operators))
    if isinstance(first, BlockDiagonal):
        blocks = [operator.blocks for operator in operators if isinstance(operator, BlockDiagonal)]
        return _Blocks({names: _family([each[names] for each in blocks]) for names in first.blocks})
    if isinstance(first, KroneckerLayer):
        layers = [operator for operator in operators if isinstance(operator, KroneckerLayer)]
        weights = _Kroneckers.of([layer.weight for layer in layers])
        return _Layers(weights, _inverses(layer.bias for layer in layers), _family([each.shift for each in layers]))
    if isinstance(first, Kronecker):
        return _Kroneckers.of([operator for operator in operators if isinstance(operator, Kronecker)])
    if isinstance(first, Spectral):
        inverse = _inverses(operator.values for operator in operators if isinstance(operator, Spectral))
        return _Spectra(first.vectors, inverse)
    if isinstance(first, LowRank):
        return _LowRanks.of([operator for operator in operators if isinstance(operator, LowRank)])
    return _Diagonals(_inverses(operator.values for operator in operators if isinstance(operator, Diagonal)))


def _inverses(values: Iterable[Tensor]) -> Tensor:
    """1 / values, `[m, ...]`."""
    return torch.stack(list(values)).reciprocal_()


@dataclass(frozen=True, eq=False)
class _Blocks(Family):
    blocks: Mapping[tuple[str, ...], Family]

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        if not isinstance(block, Jacobian):
            raise TypeError("operators by parameter need a Jacobian by parameter")
        parts = (part.covariances(block.select(names), diagonal) for names, part in self.blocks.items())
        total = next(parts)
        for part in parts:
            total += part
        return total


@dataclass(frozen=True, eq=False)
class _Mixed(Family):
    """Members by their places."""

    parts: tuple[tuple[tuple[int, ...], Family], ...]

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        block = _held(block)
        found: dict[int, Tensor] = {}
        for places, part in self.parts:
            found.update(zip(places, part.covariances(block, diagonal), strict=True))
        return torch.stack([found[place] for place in sorted(found)])


@dataclass(frozen=True, eq=False)
class _Alone(Family):
    operators: tuple[SPD, ...]

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        if not any(isinstance(operator, Dense) for operator in self.operators):
            block = _held(block)
            return torch.stack([covariance(operator, block, diagonal) for operator in self.operators])
        parts = []
        for j in _dense_parts(block):
            formed = DenseBlock(j, torch.Size(j.shape[2:]))
            parts.append(torch.stack([covariance(operator, formed, diagonal) for operator in self.operators]))
        return torch.cat(parts, 1)


def _held(block: Block) -> Block:
    """The block to be asked for many times."""
    return block.to(block.like.dtype) if isinstance(block, Jacobian) else block


def _dense_parts(block: Block) -> Iterator[Tensor]:
    """J `[n', r, p]`, a few inputs at a time."""
    (n, r), like = block.rows, block.like
    for part in block.split(pieces(n, r * block.size * like.element_size(), like.device)):
        yield part.dense()


@dataclass(frozen=True, eq=False)
class _Diagonals(Family):
    inverse: Tensor
    """`[m, p]`."""

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        if isinstance(block, OuterBlock):
            return outer_grams(block, block.as_matrix(self.inverse), diagonal)
        if isinstance(block, LookupBlock):
            return lookup_grams(block, self.inverse.view(-1, *block.shape), diagonal)
        return torch.cat([grams(j, self.inverse, diagonal) for j in _dense_parts(block)], 1)


@dataclass(frozen=True, eq=False)
class _Spectra(Family):
    vectors: Tensor
    inverse: Tensor
    """`[m, p]`."""

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        done = []
        for j in _dense_parts(block):
            rotated = product(j.reshape(-1, j.shape[-1]), self.vectors).view(j.shape)
            done.append(grams(rotated, self.inverse, diagonal))
        return torch.cat(done, 1)


@dataclass(frozen=True, eq=False)
class _Kroneckers(Family):
    left: Tensor | None
    right: Tensor | None
    inverse: Tensor
    """`[m, k, rows, cols]`."""

    @classmethod
    def of(cls, operators: Sequence[Kronecker]) -> _Kroneckers:
        return cls(operators[0].left, operators[0].right, _inverses(operator.values for operator in operators))

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        if isinstance(block, LookupBlock) and self.left is None:
            rotated = block.rotated(None if self.right is None else self.right[0])
            return lookup_grams(rotated, self.inverse[:, 0], diagonal)
        if isinstance(block, OuterBlock):
            return self._outer(block, diagonal)
        basis = Kronecker(self.left, self.right, self.inverse[0])
        parts = [grams(basis.to_basis(j).flatten(2), self.inverse.flatten(1), diagonal) for j in _dense_parts(block)]
        return torch.cat(parts, 1)

    def turned(self, block: OuterBlock) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Bases of a and g, and the inverses as matrices `[m, k, o, i]`."""
        if block.flip:
            return self.left, self.right, self.inverse.mT
        return self.right, self.left, self.inverse

    def _outer(self, block: OuterBlock, diagonal: bool) -> Tensor:
        """Rotation into the eigenbasis before or after the sum over positions, whichever multiplies less."""
        a_basis, g_basis, weights = self.turned(block)
        if by_positions(block, len(weights), diagonal):
            return outer_grams(block.rotated(a_basis, g_basis), weights, diagonal)
        r, (_, s, o, i) = block.rows[1], block.sizes
        a_first, g_first = s <= r * o, s <= i
        block = block.rotated(a_basis if a_first else None, g_basis if g_first else None)
        done = []
        for j in block.formed():
            if not a_first and a_basis is not None:
                j = j @ a_basis.unsqueeze(1) if len(a_basis) > 1 else product(j.flatten(0, 3), a_basis[0]).view(j.shape)
            j = j if g_first or g_basis is None else g_basis.mT.unsqueeze(1) @ j
            done.append(formed_grams(j, weights, diagonal))
        return torch.cat(done, 1)


@dataclass(frozen=True, eq=False)
class _Layers(Family):
    """Weights with their biases: at one position the weight's rotation serves both."""

    weights: _Kroneckers
    bias: Tensor
    """`[m, k, o]`."""
    shifts: Family

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        if not isinstance(block, Jacobian):
            raise TypeError("a layer's operator needs a Jacobian by parameter")
        (weight, outer), (bias, shift) = block.blocks.items()
        # A batch that does not call the layer brings dense blocks.
        plain = isinstance(outer, OuterBlock) and outer.positions == 1 and outer.sizes[0] == 1 and not outer.flip
        if not isinstance(outer, OuterBlock) or not plain or block.biases.get(weight) != bias:
            return self.weights.covariances(outer, diagonal) + self.shifts.covariances(shift, diagonal)
        a_basis, g_basis, values = self.weights.turned(outer)
        return outer_grams(outer.rotated(a_basis, g_basis), values, diagonal, self.bias[:, 0])


@dataclass(frozen=True, eq=False)
class _LowRanks(Family):
    """(1/δ) (I − W diag(values / (1 + values)) Wᵀ), in float64: variances are differences of large numbers."""

    vectors: Tensor
    values: Tensor
    """`[m, k]`."""
    scale: Tensor
    """δ `[m]`."""

    @classmethod
    def of(cls, operators: Sequence[LowRank]) -> _LowRanks:
        values = torch.stack([operator.values for operator in operators])
        return cls(operators[0].vectors, values, torch.stack([operator.scale[0] for operator in operators]))

    def covariances(self, block: Block, diagonal: bool = False) -> Tensor:
        dtype = block.like.dtype
        block = block.to(self.scale.dtype)  # Jacobians whose blocks are asked for once are from here on held
        whole = block.gram(self.vectors.new_ones(len(self.vectors)), diagonal)
        seen = block.jvp(self.vectors.mT).movedim(0, -1)  # [n, r, k]
        inside = grams(seen, self.values / (1 + self.values), diagonal)
        return ((whole - inside) / self.scale.view(-1, *[1] * whole.ndim)).to(dtype)
