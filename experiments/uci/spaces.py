"""Where the linear models of dense networks are computed: over outputs, or over weights layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from experiments.uci.stack import Layer
from linlap.linalg import safe_cholesky
from linlap.refine.problem import Problem
from linlap.refine.spaces import DiagonalSpace, Factor, FunctionSpace, Space, WeightSpace, root_of, solved, times

Sides = Sequence[tuple[int, int]]
"""Inputs and outputs of each layer."""


@dataclass(frozen=True, eq=False)
class ByLayer(WeightSpace):
    """As `WeightSpace`, with products of J from the layers' inputs and derivatives."""

    layers: Sequence[Layer]

    def outputs(self, mean: Tensor) -> Tensor:
        return self.problem.f + self.seen(mean - self.problem.theta)

    def gradient(self, mean: Tensor, residual: Tensor) -> Tensor:
        return self.pulled(residual) - self.problem.d * mean

    def seen(self, v: Tensor) -> Tensor:
        """J v `[M, N, C]` for v `[M, P]`."""
        total = torch.zeros_like(self.problem.f)
        for layer, (weight, bias) in zip(self.layers, self._split(v), strict=True):
            change = layer.a @ weight.mT + bias.unsqueeze(-2)
            total += (layer.g @ change.unsqueeze(-1)).squeeze(-1)
        return total

    def pulled(self, u: Tensor) -> Tensor:
        """Jᵀ u `[M, P]` for u `[M, N, C]`."""
        parts = []
        for layer in self.layers:
            back = (layer.g.mT @ u.unsqueeze(-1)).squeeze(-1)
            parts += [(back.mT @ layer.a).flatten(1), back.sum(1)]
        return torch.cat(parts, -1)

    def _split(self, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights `[M, o, i]` and biases `[M, o]` of each layer."""
        start = 0
        for i, o in sides_of(self.layers):
            end = start + i * o
            yield v[:, start:end].unflatten(-1, (o, i)), v[:, end : end + o]
            start = end + o


@dataclass(frozen=True, eq=False)
class LayeredSpace(ByLayer):
    """All covariances, with Jᵀ L J from the layers.

    Of two dense layers it is Σ_n (gᵀ L g′) ⊗ (a a′ᵀ): one product over the N data of what they have at outputs with
    what they have at inputs. With rows of J it would be one over N·C rows, of every pair of weights. On the diagonal
    both factors are symmetric, and half of each will do.
    """

    def factor(self, blocks: Tensor) -> Factor:
        precision = self.curvature(blocks)
        precision.diagonal(dim1=-2, dim2=-1).add_(self.problem.d)
        return Factor(safe_cholesky(precision, "posterior precision"), root_of(blocks))

    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        noise = self.problem.d.sqrt() * prior_noise + self.pulled(times(factor.root, data_noise))
        return self.seen(solved(factor.lower, noise))

    def curvature(self, blocks: Tensor) -> Tensor:
        """Jᵀ L J `[M, P, P]` for L `[M, N, C, C]`."""
        places = _places(self.layers)
        total = blocks.new_empty(len(blocks), self.problem.size, self.problem.size)
        for one, other in combinations_with_replacement(range(len(self.layers)), 2):
            first, second = self.layers[one], self.layers[other]
            both = _symmetric(first, blocks) if one == other else _crossed(first, second, blocks)
            total[:, places[one].unsqueeze(-1), places[other]] = both
            if one != other:
                total[:, places[other].unsqueeze(-1), places[one]] = both.mT
        return total


@dataclass(frozen=True, eq=False)
class LayeredDiagonal(ByLayer, DiagonalSpace):
    """Independent weights, with the diagonal of Jᵀ L J from the layers: Σ_n (gᵀ L g)_oo a_i²."""

    def factor(self, blocks: Tensor) -> Factor:
        parts = []
        for layer in self.layers:
            outer = (layer.g * (blocks @ layer.g)).sum(-2)
            parts += [(outer.mT @ layer.a.square()).flatten(1), outer.sum(1)]
        # No root of L: what is drawn comes from the precision's diagonal alone.
        return Factor(torch.cat(parts, -1) + self.problem.d, blocks)

    def deviations(self, factor: Factor, prior_noise: Tensor, data_noise: Tensor) -> Tensor:
        return self.seen(prior_noise * factor.lower.rsqrt())


def _crossed(first: Layer, second: Layer, blocks: Tensor) -> Tensor:
    """`[M, o·(i + 1), o′·(i′ + 1)]` of two layers."""
    outer = first.g.mT @ (blocks @ second.g)
    inner = _with_one(first.a).unsqueeze(-1) * _with_one(second.a).unsqueeze(-2)
    product = outer.flatten(-2).mT @ inner.flatten(-2)
    sides = (*outer.shape[-2:], *inner.shape[-2:])
    return product.unflatten(-1, sides[2:]).unflatten(-3, sides[:2]).transpose(-3, -2).flatten(-4, -3).flatten(-2)


def _symmetric(layer: Layer, blocks: Tensor) -> Tensor:
    """`[M, o·(i + 1), o·(i + 1)]` of one layer."""
    a = _with_one(layer.a)
    outer = layer.g.mT @ (blocks @ layer.g)
    half_o, every_o = _triangle(outer.shape[-1], a.device)
    half_i, every_i = _triangle(a.shape[-1], a.device)
    product = outer[..., half_o[0], half_o[1]].mT @ (a[..., half_i[0]] * a[..., half_i[1]])
    whole = product[:, every_o][..., every_i]  # [M, o, o′, i, i′]
    return whole.transpose(-3, -2).flatten(-4, -3).flatten(-2)


def _with_one(a: Tensor) -> Tensor:
    """Inputs, and the constant one of biases."""
    return torch.cat([a, torch.ones_like(a[..., :1])], -1)


def _triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper triangle, and where in it every entry of a symmetric matrix lies."""
    half = torch.triu_indices(size, size, device=device)
    every = torch.empty(size, size, dtype=torch.long, device=device)
    every[half[0], half[1]] = every[half[1], half[0]] = torch.arange(half.shape[1], device=device)
    return half, every


def _places(layers: Sequence[Layer]) -> list[Tensor]:
    """For each layer where the weights (o, i) and, last in each row, the biases lie among all P."""
    found, start = [], 0
    for layer, (i, o) in zip(layers, sides_of(layers), strict=True):
        weights = torch.arange(start, start + o * i, device=layer.a.device).view(o, i)
        biases = torch.arange(start + o * i, start + o * i + o, device=layer.a.device).view(o, 1)
        found.append(torch.cat([weights, biases], 1).flatten())
        start += o * i + o
    return found


def quicker(problem: Problem, layers: Sequence[Layer], steps: int) -> Space:
    """Over outputs or over weights, by counted multiplications of so many factorisations."""
    sides = sides_of(layers)
    n, c = problem.f.shape[-2:]
    if over_outputs(n, c, sides, steps) < over_weights(n, sides, steps):
        return FunctionSpace(problem)
    return LayeredSpace(problem, layers)


def over_outputs(n: float, outputs: int, sides: Sides, steps: int) -> float:
    """The kernel; then Cholesky factors of N·C rows, and products with the root of L."""
    rows = n * outputs
    return rows**2 * sum(sizes_of(sides)) + steps * (rows**3 / 6 + 2 * outputs * rows**2)


def over_weights(n: float, sides: Sides, steps: int) -> float:
    """Cholesky factors, and the curvature of layers with so many inputs and outputs."""
    sizes = sizes_of(sides)
    squares = sum(size**2 for size in sizes)
    crossed = (sum(sizes) ** 2 - squares) / 2
    return steps * (n * (crossed + squares / 4) + sum(sizes) ** 3 / 6)


def sides_of(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Inputs and outputs."""
    return [(layer.a.shape[-1], layer.g.shape[-1]) for layer in layers]


def sizes_of(sides: Sides) -> list[int]:
    """Weights and biases of each layer."""
    return [(i + 1) * o for i, o in sides]
