"""Kronecker-factored curvature: one pair of small matrices a layer.

For a weight used once per input the block of one datum is exactly G ⊗ A with A = a aᵀ and G = Σ_r g gᵀ; over
data the sum of products is replaced by the product of sums, over their number. With shared positions there
are three readings: "expand" sums both over positions and divides once by their number, "reduce" averages a
and sums g first, "sum" divides by nothing. A bias has its weight's G, as if its input were always 1, which is
exact at one position; norm layers' and other small parameters keep an exact block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from linlap import tree
from linlap.checks import is_whole
from linlap.curvature.base import Curvature, Shapes, Structure, Sweep, Totals, blend
from linlap.curvature.spectrum import Spectrum
from linlap.errors import InputError
from linlap.jacobian import DenseBlock, Jacobian, LookupBlock, OuterBlock, ParameterBlock
from linlap.linalg import SPD, BlockDiagonal, Diagonal, Kronecker, KroneckerLayer, Spectral, rounded, safe_eigh
from linlap.prior import Prior

Damping = Literal["none", "sqrt"]
Sharing = Literal["expand", "reduce", "sum"]


@dataclass(frozen=True, eq=False)
class Pair:
    """Sums A `[k, i, i]` (or the diagonal `[V]` of an embedding's) and G `[k, o, o]`, and what to divide by once.

    `rank` is how many vectors a A sums the products of: it cannot have a higher one.
    """

    a: Tensor
    g: Tensor
    count: int
    rank: int
    rows_are_a: bool

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(λ_a, U_a or None, λ_g, U_g), with λ_a averaged and λ_g summed over the data."""
        return *self._a_eigen, *self._g_eigen

    @cached_property
    def _a_eigen(self) -> tuple[Tensor, Tensor | None]:
        if self.a.ndim == 1:
            return self.a.unsqueeze(0) / self.count, None
        values, vectors = safe_eigh(self.a, "Kronecker factor A", self.rank)
        return values / self.count, vectors

    @cached_property
    def _g_eigen(self) -> tuple[Tensor, Tensor]:
        return safe_eigh(self.g, "Kronecker factor G")

    def with_g(self, g: Tensor) -> Pair:
        """The same layer inputs with other gradients; what is known of A is kept."""
        changed = replace(self, g=g)
        vars(changed)["_a_eigen"] = self._a_eigen
        return changed

    def scaled(self, factor: Tensor) -> Pair:
        """factor · G ⊗ A: the factor is G's."""
        changed = self.with_g(self.g * factor)
        if "_g_eigen" in vars(self):
            values, vectors = self._g_eigen
            vars(changed)["_g_eigen"] = (values * factor, vectors)
        return changed

    @property
    def shape(self) -> torch.Size:
        """`[k, rows, cols]` of the weight."""
        o, i = self.g.shape[-1], self.a.shape[-1]
        return torch.Size((len(self.g), *((i, o) if self.rows_are_a else (o, i))))

    def basis(self) -> tuple[Tensor | None, Tensor | None]:
        """(left, right) eigenvectors in the order of the parameter's rows and columns."""
        _, a_vectors, _, g_vectors = self.eigen
        return (a_vectors, g_vectors) if self.rows_are_a else (g_vectors, a_vectors)

    def values(self, shift: Tensor | None = None) -> Tensor:
        """Eigenvalues `[k, rows, cols]`; a shift is added to those of both factors before they are multiplied."""
        a_values, _, g_values, _ = self.eigen
        a, g = a_values.unsqueeze(-2), g_values.unsqueeze(-1)
        if shift is None:
            values = g * a
        else:
            shift = shift.mT if self.rows_are_a and shift.ndim else shift
            values = (g + shift) * (a + shift)
        return values.mT if self.rows_are_a else values


@dataclass(frozen=True, eq=False)
class KronCurvature(Curvature):
    """Each parameter has a pair, a small matrix `[p, p]`, or a diagonal `[p]`.

    `corrected` holds re-estimated eigenvalues of pairs, `[k, rows, cols]`; they belong to the eigenbasis of
    these very sums, so corrected curvatures do not add.
    """

    shapes: Shapes
    totals: Totals
    pairs: dict[str, Pair]
    squares: dict[str, Tensor]
    diagonals: dict[str, Tensor]
    damping: Damping = "none"
    sharing: Sharing = "expand"
    corrected: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    """Biases by their weights: the weight's G is the bias's block."""

    @cached_property
    def _square_eigen(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {name: safe_eigh(matrix, f"curvature of {name}") for name, matrix in self.squares.items()}

    def precision(self, prior: Prior) -> BlockDiagonal:
        tensors = [pair.g for pair in self.pairs.values()] + [*self.squares.values(), *self.diagonals.values()]
        d = prior.by_parameter(self.shapes, tensors[0].device)
        borrowed = set(self.shared.values())
        blocks: dict[tuple[str, ...], SPD] = {}
        for name in self.shapes:
            if name in self.shared:
                bias = self.shared[name]
                blocks[name, bias] = KroneckerLayer(self._kronecker(name, d[name]), self._bias_values(name, d[bias]))
            elif name not in borrowed:
                blocks[name,] = self._operator(name, d[name])
        return BlockDiagonal(blocks)

    def spectra(self, uniform: bool) -> list[Spectrum]:
        owners = {bias: weight for weight, bias in self.shared.items()}
        return [part for name in self.shapes for part in self._spectra_of(name, owners.get(name))]

    def _spectra_of(self, name: str, owner: str | None) -> list[Spectrum]:
        if name in self.diagonals:
            return [Spectrum((name,), self.diagonals[name])]
        if name in self.squares:
            return [Spectrum((name,), self._square_eigen[name][0])]
        if name in self.corrected:
            return [Spectrum((name,), self.corrected[name].flatten())]
        a_values, _, g_values, _ = self.pairs[owner or name].eigen
        if owner:
            return [Spectrum((name,), g_values.flatten())]
        if self.damping == "none":
            return [Spectrum((name,), self.pairs[name].values().flatten())]
        of_g = Spectrum((name,), g_values.flatten(), a_values.shape[-1], 0.5)  # log (λ_g + √δ)(λ_a + √δ), of all pairs
        return [of_g, Spectrum((name,), a_values.flatten(), g_values.shape[-1], 0.5, fixed=True)]

    def scaled(self, factor: Tensor) -> KronCurvature:
        def times(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value * factor for name, value in values.items()}

        changed = replace(
            self,
            pairs={name: pair.scaled(factor) for name, pair in self.pairs.items()},
            squares=times(self.squares),
            diagonals=times(self.diagonals),
            corrected=times(self.corrected),
        )
        if "_square_eigen" in vars(self):
            known = self._square_eigen.items()
            vars(changed)["_square_eigen"] = {name: (values * factor, vectors) for name, (values, vectors) in known}
        return changed

    def reweighted(self, parts: Sequence[Curvature], factors: Tensor) -> KronCurvature:
        """A is the same for all outputs, and stays."""
        total: Any = super().reweighted(parts, factors)
        pairs = {name: pair.with_g(total.pairs[name].g) for name, pair in self.pairs.items()}
        changed: KronCurvature = replace(total, pairs=pairs)
        return changed

    def _bias_values(self, weight: str, d: Tensor) -> Tensor:
        _, _, values, vectors = self.pairs[weight].eigen
        if d.ndim:
            d = (vectors.square().mT @ d.reshape(*values.shape, 1)).squeeze(-1)
        return values + d

    def _operator(self, name: str, d: Tensor) -> SPD:
        if name in self.diagonals:
            return Diagonal(self.diagonals[name] + d)
        if name in self.squares:
            values, vectors = self._square_eigen[name]
            # A prior that differs between weights is not diagonal in this basis: its diagonal there is kept.
            return Spectral(vectors, values + (vectors.square().mT @ d if d.ndim else d))
        return self._kronecker(name, d)

    def _kronecker(self, name: str, d: Tensor) -> Kronecker:
        pair = self.pairs[name]
        left, right = pair.basis()
        if d.ndim:
            d = _projected(d.reshape(pair.shape), left, right)
        if name in self.corrected:
            return Kronecker(left, right, self.corrected[name] + d)
        if self.damping == "sqrt":
            return Kronecker(left, right, pair.values(d.sqrt()))
        return Kronecker(left, right, pair.values() + d)

    def blended(self, other: Curvature, rate: float, share: float) -> Curvature:
        """A is what the layers' inputs make it, whatever the weights in the linear model: only G is blended."""
        if not isinstance(other, KronCurvature) or self.corrected or not tree.alike(self, other):
            raise InputError(
                "cannot average curvatures that keep some parameters in different forms, nor corrected ones; use "
                "Kron(corrected=False), and batches that call the same layers."
            )
        pairs = {name: p.with_g(blend(p.g, other.pairs[name].g, rate, share)) for name, p in self.pairs.items()}
        squares = blend(self.squares, other.squares, rate, share)
        diagonals = blend(self.diagonals, other.diagonals, rate, share)
        return replace(self, pairs=pairs, squares=squares, diagonals=diagonals)

    def _plus(self, other: Curvature) -> Curvature:
        if self.corrected or (isinstance(other, KronCurvature) and other.corrected):
            raise InputError(
                "corrected eigenvalues belong to the eigenbasis of their own data and cannot be added; fit once on "
                "all data, or use Kron(corrected=False), which adds exactly."
            )
        if isinstance(other, KronCurvature) and (other.damping, other.sharing) != (self.damping, self.sharing):
            raise InputError(
                f"cannot add curvatures of Kron(damping={self.damping!r}, sharing={self.sharing!r}) and "
                f"Kron(damping={other.damping!r}, sharing={other.sharing!r}); fit both with the same structure."
            )
        if not tree.alike(self, other):
            raise InputError(
                "cannot add curvatures that keep some parameters in different forms (another dense_limit, or data that "
                "call a layer in one of them only); fit both with the same structure, or once on all data."
            )
        return super()._plus(other)


def _projected(d: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """The diagonal, in a Kronecker eigenbasis, of the diagonal matrix of d `[k, rows, cols]`."""
    d = d if left is None else left.square().mT @ d
    return d if right is None else d @ right.square()


@dataclass(frozen=True)
class _Sums:
    """What one pass adds up, by parameter."""

    pairs: dict[str, Pair]
    squares: dict[str, Tensor]
    diagonals: dict[str, Tensor]
    shared: dict[str, str]


@dataclass(frozen=True)
class Kron(Structure):
    """A Kronecker product a layer: the default, for networks of any size.

    `damping="sqrt"` adds √δ to each factor instead of δ to their product (Ritter et al., 2018), which
    concentrates the posterior. `corrected=True` takes a second pass that re-estimates the eigenvalues in the
    Kronecker basis (EKFAC). Parameters that are no matrix of a known layer get an exact block up to
    `dense_limit` entries, and their exact diagonal above.
    """

    damping: Damping = "none"
    sharing: Sharing = "expand"
    corrected: bool = False
    dense_limit: int = 1024

    def __post_init__(self) -> None:
        if self.damping not in ("none", "sqrt"):
            raise InputError(f"damping={self.damping!r}; pass 'none' (exact prior) or 'sqrt' (Ritter et al.).")
        if self.sharing not in ("expand", "reduce", "sum"):
            raise InputError(f"sharing={self.sharing!r}; pass 'expand', 'reduce' or 'sum'.")
        if not isinstance(self.corrected, bool):
            raise InputError(f"corrected={self.corrected!r}; pass True or False.")
        if not is_whole(self.dense_limit, 0):
            raise InputError(f"dense_limit={self.dense_limit!r}; pass a whole number ≥ 0 of entries.")
        if self.corrected and self.damping != "none":
            raise InputError(
                "corrected=True with damping='sqrt': corrected eigenvalues have no factors to dampen; choose one."
            )

    def fit(self, sweep: Sweep) -> KronCurvature:
        sums = sweep.sum(self._measure, "fitting the Kronecker factors")
        curvature = KronCurvature(
            sweep.shapes,
            sweep.totals,
            sums.pairs,
            sums.squares,
            sums.diagonals,
            self.damping,
            self.sharing,
            shared=sums.shared,
        )
        if not self.corrected:
            return curvature
        corrected = sweep.sum(lambda jacobian: _eigenvalues(jacobian, curvature), "correcting the eigenvalues")
        return replace(curvature, corrected=corrected)

    def fit_part(self, sweep: Sweep, known: Curvature) -> Curvature:
        """Without A, which is not averaged: in a convolution it takes most of the time."""
        pairs = known.pairs if isinstance(known, KronCurvature) else {}
        sums = sweep.sum(lambda jacobian: self._measure(jacobian, pairs), "fitting the Kronecker factors")
        found = (sums.pairs, sums.squares, sums.diagonals, self.damping, self.sharing)
        return KronCurvature(sweep.shapes, sweep.totals, *found, shared=sums.shared)

    def _measure(self, jacobian: Jacobian, known: Mapping[str, Pair] = MappingProxyType({})) -> _Sums:
        """Pairs of known names keep their A."""
        names = list(jacobian.shapes)
        following = dict(pairwise(names))
        owners = {b: w for w, b in jacobian.biases.items() if following.get(w) == b}
        sums = _Sums({}, {}, {}, {})
        for name in names:
            weight = owners.get(name)
            # A norm layer's scale has no pair; G of a transposed convolution is over patches, not over channels.
            if weight in sums.pairs and not sums.pairs[weight].rows_are_a:
                sums.shared[weight] = name
            else:
                self._measure_block(name, jacobian.blocks[name], sums, known.get(name))
        return sums

    def _measure_block(self, name: str, block: ParameterBlock, sums: _Sums, known: Pair | None) -> None:
        if isinstance(block, OuterBlock) and known is not None:
            sums.pairs[name] = replace(known, g=block.g_factor(self.sharing).double())
        elif isinstance(block, OuterBlock | LookupBlock):
            a, g = block.factors(self.sharing)
            n = block.rows[0]
            count = n * block.positions if self.sharing == "expand" else n
            rank = n if self.sharing == "reduce" else n * block.positions
            rows_are_a = block.flip if isinstance(block, OuterBlock) else True
            sums.pairs[name] = Pair(a.double(), g.double(), count, rank, rows_are_a)
        elif isinstance(block, DenseBlock) and block.size <= self.dense_limit:
            sums.squares[name] = block.second_moment().double()
        else:
            sums.diagonals[name] = block.square_sum().double()

    def bytes_needed(self, shapes: Shapes, tables: Collection[str] = ()) -> int:
        numbers = 0
        for name, shape in shapes.items():
            size, rows = shape.numel(), shape[0] if len(shape) else 1
            if len(shape) < 2:
                numbers += size**2 if size <= self.dense_limit else size
                continue
            cols = size // max(1, rows)
            # One-hot inputs have a diagonal second moment.
            numbers += (rows if name in tables else rows**2) + cols**2 + 2 * size
        # Sums and eigenvectors in float64, and the eigenvectors again in the network's dtype.
        return 3 * 8 * numbers


def _eigenvalues(jacobian: Jacobian, curvature: KronCurvature) -> dict[str, Tensor]:
    """Σ over data and seeds of (U_gᵀ J U_a)², for every pair."""
    found = {}
    for name, pair in curvature.pairs.items():
        block = jacobian.blocks[name]
        _, a_vectors, _, g_vectors = pair.eigen
        a_basis = None if a_vectors is None else rounded(a_vectors, block.like.dtype)
        g_basis = rounded(g_vectors, block.like.dtype)
        if isinstance(block, LookupBlock):
            squares = block.rotated(g_basis[0]).square_sum()
        elif isinstance(block, OuterBlock):
            squares = block.rotated(a_basis, g_basis).square_sum()
        else:  # a layer that this batch does not call
            left, right = (a_basis, g_basis) if pair.rows_are_a else (g_basis, a_basis)
            squares = (
                Kronecker(left, right, block.like.new_empty(pair.shape)).to_basis(block.dense()).square().sum((0, 1))
            )
        found[name] = squares.double().reshape(pair.shape)
    return found
