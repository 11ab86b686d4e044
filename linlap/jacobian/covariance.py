"""J P⁻¹ Jᵀ: covariances of the outputs under a precision, one contraction for each kind of operator.

`covariance` is what predictions need, per input. `whitened` gives features Φ = J P^-½, whose products
Φ Φᵀ are covariances between inputs as well.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from linlap.jacobian.block import Block, gram_of, pieces
from linlap.jacobian.gram import weighted_gram
from linlap.jacobian.jacobian import Jacobian
from linlap.jacobian.lookup import LookupBlock
from linlap.jacobian.outer import OuterBlock
from linlap.linalg import SPD, BlockDiagonal, Dense, Diagonal, Kronecker, KroneckerLayer, LowRank, Spectral, product


@singledispatch
def covariance(precision: SPD, block: Block, diagonal: bool = False) -> Tensor:
    """J P⁻¹ Jᵀ for each input, `[n, r, r]`, or its diagonal `[n, r]`."""
    (n, r), like = block.rows, block.like
    size = pieces(n, r * block.size * like.element_size(), like.device)
    return torch.cat([gram_of(whitened(precision, part), diagonal) for part in block.split(size)])


@covariance.register
def _(precision: Diagonal, block: Block, diagonal: bool = False) -> Tensor:
    return block.gram(precision.values.reciprocal(), diagonal)


@covariance.register
def _(precision: LowRank, block: Block, diagonal: bool = False) -> Tensor:
    dtype = block.like.dtype
    inverse = precision.scale.reciprocal()
    directions = (precision.vectors * inverse.sqrt().unsqueeze(-1)).mT
    shrink = (precision.values / (1 + precision.values)).sqrt()
    block = block.to(inverse.dtype)  # Jacobians whose blocks are asked for once are from here on held
    seen = block.jvp(directions).movedim(0, -1) * shrink  # [n, r, k]
    return (block.gram(inverse, diagonal) - gram_of(seen, diagonal)).to(dtype)


@covariance.register
def _(precision: Kronecker, block: Block, diagonal: bool = False) -> Tensor:
    if isinstance(block, LookupBlock):
        rotated = block.rotated(None if precision.right is None else precision.right[0])
        return rotated.gram(precision.inverse_values.flatten(), diagonal)
    if isinstance(block, OuterBlock):
        return _kronecker_covariance(precision, block, diagonal)
    return gram_of(whitened(precision, block), diagonal)


def _kronecker_covariance(precision: Kronecker, block: OuterBlock, diagonal: bool) -> Tensor:
    """Rotation into the eigenbasis before or after the sum over positions, whichever multiplies less."""
    a_basis, g_basis, weights = precision.right, precision.left, precision.inverse_values
    if block.flip:
        a_basis, g_basis, weights = g_basis, a_basis, weights.mT
    if block.pairs_are_cheaper():
        return block.rotated(a_basis, g_basis).gram_matrix(weights, diagonal)
    (_, r), (_, s, o, i) = block.rows, block.sizes
    a_first, g_first = s <= r * o, s <= i
    block = block.rotated(a_basis if a_first else None, g_basis if g_first else None)
    done = []
    for j in block.formed():
        if not a_first and a_basis is not None:
            j = j @ a_basis.unsqueeze(1) if len(a_basis) > 1 else product(j.flatten(0, 3), a_basis[0]).view(j.shape)
        j = j if g_first or g_basis is None else g_basis.mT.unsqueeze(1) @ j
        done.append(weighted_gram(j, weights, diagonal))
    return torch.cat(done)


@covariance.register
def _(precision: KroneckerLayer, block: Jacobian, diagonal: bool = False) -> Tensor:
    (weight, outer), (bias, shift) = block.blocks.items()
    # A batch that does not call the layer brings dense blocks.
    if not isinstance(outer, OuterBlock) or outer.positions > 1 or block.biases.get(weight) != bias:
        return covariance(precision.weight, outer, diagonal) + covariance(precision.shift, shift, diagonal)
    # One position: the bias's rows are g itself, so the weight's rotation serves both.
    rotated = outer.rotated(precision.weight.right, precision.weight.left)
    return rotated.gram_once(precision.weight.inverse_values, diagonal, precision.bias.reciprocal())


@covariance.register
def _(precision: BlockDiagonal, block: Jacobian, diagonal: bool = False) -> Tensor:
    parts = (covariance(part, block.select(names), diagonal) for names, part in precision.blocks.items())
    total = next(parts)
    for part in parts:
        total = total + part
    return total


@singledispatch
def whitened(precision: SPD, block: Block) -> Tensor:
    """Features Φ `[n, r, q]` with Φ Φᵀ = J P⁻¹ Jᵀ, for the rows of all inputs together."""
    raise TypeError(f"no contraction for {type(precision).__name__} and {type(block).__name__}")


@whitened.register
def _(precision: Diagonal, block: Block) -> Tensor:
    return block.dense() * precision.values.rsqrt()


@whitened.register
def _(precision: Dense, block: Block) -> Tensor:
    j = block.dense()
    flat = torch.linalg.solve_triangular(precision.factor, j.flatten(0, 1).mT, upper=False)
    return flat.mT.reshape(j.shape)


@whitened.register
def _(precision: Spectral, block: Block) -> Tensor:
    j = block.dense()
    rotated = product(j.reshape(-1, j.shape[-1]), precision.vectors).view(j.shape)
    return rotated * precision.values.rsqrt()


@whitened.register
def _(precision: Kronecker, block: Block) -> Tensor:
    return (precision.to_basis(block.dense()) * precision.values.rsqrt()).flatten(2)


@whitened.register
def _(precision: KroneckerLayer, block: Jacobian) -> Tensor:
    weight, bias = block.blocks.values()
    return torch.cat([whitened(precision.weight, weight), whitened(precision.shift, bias)], -1)


@whitened.register
def _(precision: LowRank, block: Block) -> Tensor:
    j = block.dense().to(precision.scale.dtype) * precision.scale.rsqrt()
    change = (1 + precision.values).rsqrt() - 1
    return j + ((j @ precision.vectors) * change) @ precision.vectors.mT


@whitened.register
def _(precision: BlockDiagonal, block: Jacobian) -> Tensor:
    parts = [whitened(part, block.select(names)) for names, part in precision.blocks.items()]
    return torch.cat(parts, dim=-1)
