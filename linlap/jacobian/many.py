"""J diag(w) Jᵀ for many weights w at once, as for many priors whose posteriors share their eigenbases.

For seeds c ≤ d the products of rows J_c∘J_d do not depend on w: they are made once, and one matrix product with all w
sums them. That takes fewer multiplications than scaling J for each w from two w on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from linlap.jacobian.block import pieces
from linlap.jacobian.lookup import LookupBlock
from linlap.jacobian.outer import OuterBlock
from linlap.linalg import product

_SCALES = 64 << 20
"""Bytes that the sums over inputs' entries may take, for all w together."""


def grams(j: Tensor, weights: Tensor, diagonal: bool = False) -> Tensor:
    """For J `[n, r, q]` and w `[m, q]`: `[m, n, r, r]`, or its diagonals `[m, n, r]`."""
    n, r, _ = j.shape
    total = j.new_zeros(n * pair_count(r, diagonal), len(weights))
    for rows, columns, products in _row_products(j, diagonal):
        total[rows].addmm_(products, weights[:, columns].mT)
    return unpaired(total.view(n, -1, len(weights)).permute(2, 0, 1), r, diagonal)


def _row_products(j: Tensor, diagonal: bool) -> Iterator[tuple[slice, slice, Tensor]]:
    """J_c∘J_d `[rows, columns]`, a few inputs or some columns of one at a time, in the memory of those before."""
    n, r, q = j.shape
    count = pair_count(r, diagonal)
    width = pieces(q, count * j.element_size(), j.device)
    size = pieces(n, count * width * j.element_size(), j.device)
    space = j.new_empty(size * count * width)
    for start in range(0, n, size):
        for left in range(0, q, width):
            part = j[start : start + size, :, left : left + width]
            shape = (len(part), count, part.shape[-1])
            products = space[: len(part) * count * part.shape[-1]].view(shape)
            _multiply(part, products, diagonal)
            rows = slice(start * count, (start + len(part)) * count)
            yield rows, slice(left, left + width), products.flatten(0, 1)


def _multiply(j: Tensor, out: Tensor, diagonal: bool) -> None:
    """Writes J_c∘J_d `[n, pairs, q]` for J `[n, r, q]`."""
    if diagonal:
        torch.mul(j, j, out=out)
        return
    start, r = 0, j.shape[1]
    for c in range(r):
        torch.mul(j[:, c:], j[:, c : c + 1], out=out[:, start : start + r - c])
        start += r - c


def pair_count(r: int, diagonal: bool) -> int:
    return r if diagonal else r * (r + 1) // 2


def unpaired(values: Tensor, r: int, diagonal: bool) -> Tensor:
    """Values `[..., pairs]` as symmetric matrices `[..., r, r]`; diagonals as they are."""
    if diagonal:
        return values.contiguous()
    return values[..., _places(r).to(values.device)].unflatten(-1, (r, r))


@cache
def _places(r: int) -> Tensor:
    """For each entry of a matrix the number of its pair, `[r·r]`."""
    rows, columns = torch.triu_indices(r, r, device="cpu")
    places = torch.empty(r, r, dtype=torch.long, device="cpu")
    places[rows, columns] = places[columns, rows] = torch.arange(len(rows), device="cpu")
    return places.flatten()


def outer_grams(block: OuterBlock, weights: Tensor, diagonal: bool = False, bias: Tensor | None = None) -> Tensor:
    """For a block in normal form and w `[m, k, o, i]`; at a single position and in one group, `bias` `[m, o]` weights
    a further input that is always 1."""
    if bias is None and not by_positions(block, len(weights), diagonal):
        return torch.cat([formed_grams(j, weights, diagonal) for j in block.formed()], 1)
    (n, r), (_, s, o, _) = block.rows, block.sizes
    each = s * (s + 1) // 2 * len(weights) * o * block.like.element_size()
    size = max(1, min(n, _SCALES // each))
    parts = [_grams_by_positions(part, weights, diagonal, bias) for part in block.split(size)]
    return unpaired(torch.cat(parts).transpose(0, 1), r, diagonal)


def formed_grams(j: Tensor, weights: Tensor, diagonal: bool) -> Tensor:
    """For J `[n, k, r, o, i]` and w `[m, k, o, i]`."""
    total = grams(j[:, 0].flatten(2), weights[:, 0].flatten(1), diagonal)
    for group in range(1, j.shape[1]):
        total += grams(j[:, group].flatten(2), weights[:, group].flatten(1), diagonal)
    return total


def by_positions(block: OuterBlock, priors: int, diagonal: bool) -> bool:
    """Whether contracting pairs of positions takes fewer multiplications than forming J and products of its rows."""
    r, (_, s, o, i) = block.rows[1], block.sizes
    pairs, places = pair_count(r, diagonal), s * (s + 1) // 2
    return places * (i + priors * o * i + pairs * o * (2 + priors)) <= r * s * o * i + pairs * o * i * (1 + priors)


def _grams_by_positions(block: OuterBlock, weights: Tensor, diagonal: bool, bias: Tensor | None) -> Tensor:
    """Sums `[n, m, pairs]` over positions s ≤ t of Σ_i a_s a_t w times g_c,s g_d,t + g_c,t g_d,s."""
    (n, r), (k, s, o, i), m = block.rows, block.sizes, len(weights)
    pairs = pair_count(r, diagonal)
    total = block.like.new_zeros(n, m, pairs)
    first, second = torch.triu_indices(s, s, device=block.like.device)
    size = pieces(n, (len(first) + 1) * pairs * o * block.like.element_size(), block.like.device)
    for group in range(k):
        a, g = block.a[:, group], block.g[:, :, group]  # [n, s, i], [n, r, s, o]
        inputs = a.square() if s == 1 else a[:, first] * a[:, second]
        scales = product(inputs.reshape(-1, i), weights[:, group].reshape(m * o, i).mT).view(n, len(first), m, o)
        if bias is not None:
            scales += bias
        for start in range(0, n, size):
            part = slice(start, start + size)
            paired = _paired(g[part], first, second, diagonal)  # [n', places, pairs, o]
            total[part] += (scales[part] @ paired.mT).sum(1)
    return total


def _paired(g: Tensor, first: Tensor, second: Tensor, diagonal: bool) -> Tensor:
    """g_c,s g_d,t + g_c,t g_d,s for s < t, g_c,s g_d,s for s = t, for g `[n, r, s, o]`: `[n, places, pairs, o]`."""
    n, r, s, o = g.shape
    pairs = pair_count(r, diagonal)
    out = g.new_empty(n, len(first), pairs, o)
    if s == 1:
        _multiply(g[:, :, 0], out[:, 0], diagonal)
        return out
    left, right = g[:, :, first].transpose(1, 2), g[:, :, second].transpose(1, 2)  # [n, places, r, o]
    half = (1 - 0.5 * (first == second).to(g.dtype)).view(-1, 1, 1)
    if diagonal:
        return 2 * half * left * right
    start = 0
    for c in range(r):
        there = out[:, :, start : start + r - c]
        torch.mul(left[:, :, c:], right[:, :, c : c + 1], out=there)
        there.addcmul_(right[:, :, c:], left[:, :, c : c + 1]).mul_(half)
        start += r - c
    return out


def lookup_grams(block: LookupBlock, weights: Tensor, diagonal: bool = False) -> Tensor:
    """For the block of an embedding and w `[m, V, d]`."""
    n, r = block.rows
    rows = block.distinct()  # [n, r, s, d]
    size = pieces(n, pair_count(r, diagonal) * rows[0, 0].numel() * rows.element_size(), rows.device)
    done = []
    for g, index in zip(rows.split(size), block.index.split(size), strict=True):
        products = g.new_empty(len(g), pair_count(r, diagonal), g[0, 0].numel())
        _multiply(g.flatten(2), products, diagonal)
        done.append(products @ weights[:, index].permute(1, 2, 3, 0).flatten(1, 2))
    return unpaired(torch.cat(done).permute(2, 0, 1), r, diagonal)
