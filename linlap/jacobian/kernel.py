"""J S₀ J′ᵀ between two sets of inputs: the kernel of the linear model, layer by layer.

At a single position a block's share is (a a′ᵀ) ∘ (g g′ᵀ), and no Jacobian is formed; a bias that comes with its
weight adds 1 to the first factor. With more positions either pairs of them are contracted, or Jacobians are formed
and multiplied, whichever takes fewer multiplications. Kernels are "coupled", `[1, n·r, m·q]`, between all rows,
or "independent", `[r, n, m]`, between rows of the same seed. Within, seeds come before inputs, `[r, n, q, m]`, so that
what belongs to pairs of inputs lies along rows of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from linlap.jacobian.block import Block, ParameterBlock, gram_of
from linlap.jacobian.dense import DenseBlock
from linlap.jacobian.jacobian import Jacobian
from linlap.jacobian.lookup import LookupBlock
from linlap.jacobian.outer import OuterBlock


def settled(jacobian: Jacobian, coupled: bool) -> Jacobian:
    """The same Jacobian with each block in the form that kernels are made of: to be kept, and used many times."""
    owners = {b: w for w, b in jacobian.biases.items()}
    blocks: dict[str, ParameterBlock] = {}
    biases: dict[str, str] = {}
    for name in jacobian.shapes:
        weight = blocks.get(owners.get(name, ""))
        if isinstance(weight, OuterBlock) and _is_bias_of(weight, jacobian.shapes[name].numel()):
            biases[owners[name]] = name
            blocks[name] = DenseBlock(weight.g[:, :, 0, 0], jacobian.shapes[name])
        else:
            blocks[name] = _settled(jacobian.blocks[name], coupled)
    return replace(jacobian, blocks=blocks, biases=biases)


def _is_bias_of(weight: OuterBlock, size: int) -> bool:
    """Whether a bias of the same calls has the weight's g for its rows: at one position, in one group. A transposed
    convolution's may also reach outputs that its weight does not."""
    k, s, o, _ = weight.sizes
    return s == k == 1 and o == size and not weight.flip


def _settled(block: ParameterBlock, coupled: bool) -> ParameterBlock:
    if isinstance(block, OuterBlock) and _by_pairs(block, coupled):
        return OuterBlock(block.a.contiguous(), _by_seed(block.g), block.shape, block.flip)
    if isinstance(block, LookupBlock) and _by_pairs(block, coupled):
        return replace(block, g=_by_seed(block.g))
    return DenseBlock(_by_seed(block.dense()), block.shape)


def _by_seed(rows: Tensor) -> Tensor:
    """Rows `[n, r, ...]`, lying in memory by seed and then by input."""
    return rows.transpose(0, 1).contiguous().transpose(0, 1)


def _by_pairs(block: OuterBlock | LookupBlock, coupled: bool) -> bool:
    """Whether contracting pairs of positions takes fewer multiplications, for one pair of inputs."""
    s, seeds = block.positions, block.rows[1] ** 2 if coupled else block.rows[1]
    if isinstance(block, OuterBlock):
        k, _, o, i = block.sizes
        return s == 1 or s * s * k * (i + seeds * (o + 1)) <= seeds * k * o * i
    return s * s * (1 + seeds * (block.g.shape[-1] + 1)) <= seeds * block.size


def numbers(jacobian: Jacobian) -> int:
    """How many numbers a settled Jacobian is made of."""
    n, r = jacobian.rows
    total = 0
    for name, block in jacobian.blocks.items():
        if name not in jacobian.biases.values():  # those share their weights' numbers
            shared, seeded = block.numbers
            total += n * (shared + r * seeded)
    return total


def kernel(one: Jacobian, other: Jacobian, names: Sequence[str], coupled: bool) -> Tensor:
    """Σ over the named parameters of J J′ᵀ for settled Jacobians."""
    total = _zeros(one, other, coupled)
    for name, bias in _paired(one, other, names):
        left, right = _alike(one.blocks[name], other.blocks[name])
        _add(total, left, right, 0.0 if bias is None else 1.0)
    return _in_order(total)


def weighted_kernel(one: Jacobian, other: Jacobian, name: str, weights: Tensor, coupled: bool) -> Tensor:
    """J diag(weights) J′ᵀ for one parameter whose entries have weights of their own `[p]`."""
    shape, total = one.shapes[name], _zeros(one, other, coupled)
    left = DenseBlock(_by_seed(one.blocks[name].dense() * weights.to(one.like.dtype)), shape)
    _add(total, left, DenseBlock(_by_seed(other.blocks[name].dense()), shape), 0.0)
    return _in_order(total)


def _zeros(one: Jacobian, other: Jacobian, coupled: bool) -> Tensor:
    """`[r, n, q, m]` or `[r, n, m]`."""
    (n, r), (m, q) = one.rows, other.rows
    return one.like.new_zeros((r, n, q, m) if coupled else (r, n, m))


def _in_order(total: Tensor) -> Tensor:
    """As `[1, n·r, m·q]`, or as it is."""
    if total.ndim == 3:
        return total
    r, n, q, m = total.shape
    return total.permute(1, 0, 3, 2).reshape(1, n * r, m * q)


def own_kernel(one: Jacobian, weights: Mapping[str, Tensor], diagonal: bool) -> Tensor:
    """J diag(weights) Jᵀ of each input with itself, `[n, r, r]`, or its diagonal `[n, r]`; weights one number a
    parameter, or one an entry `[p]`."""
    (n, r), like = one.rows, one.like
    total = like.new_zeros((n, r) if diagonal else (n, r, r))
    for name, block in one.blocks.items():
        weight = weights[name].to(like.dtype)
        total += block.gram(weight, diagonal) if weight.ndim else weight * _own(block, diagonal)
    return total


def _own(block: ParameterBlock, diagonal: bool) -> Tensor:
    """J Jᵀ per input."""
    if isinstance(block, DenseBlock):
        return gram_of(block.j, diagonal)
    if isinstance(block, OuterBlock) and block.positions == 1:
        a, g = block.a[:, :, 0], block.g[:, :, :, 0]  # [n, k, i], [n, r, k, o]
        power = a.square().sum(-1)
        if diagonal:
            return torch.einsum("nrko,nk->nr", g.square(), power)
        scaled = (g * power.sqrt()[:, None, :, None]).flatten(2)
        return scaled @ scaled.mT
    return block.gram(torch.ones(block.size, dtype=block.like.dtype, device=block.like.device), diagonal)


def _paired(one: Jacobian, other: Jacobian, names: Sequence[str]) -> Iterable[tuple[str, str | None]]:
    """The named parameters, a weight together with the bias that shares its gradients in both."""
    both = {w: b for w, b in one.biases.items() if other.biases.get(w) == b and {w, b} <= set(names)}
    done = set(both.values())
    return [(name, both.get(name)) for name in names if name not in done]


def _alike(left: ParameterBlock, right: ParameterBlock) -> tuple[ParameterBlock, ParameterBlock]:
    """Two blocks of a parameter in one form: a batch that does not call a layer brings a dense one."""
    if type(left) is type(right):
        return left, right
    return DenseBlock(left.dense(), left.shape), DenseBlock(right.dense(), right.shape)


def _add(total: Tensor, left: Block, right: Block, shift: float) -> None:
    """Adds J J′ᵀ; `shift` is what a bias adds to the products of inputs."""
    if isinstance(left, DenseBlock) and isinstance(right, DenseBlock):
        j, h = left.j.transpose(0, 1), right.j.transpose(0, 1)
        if total.ndim == 4:
            _as_matrix(total).addmm_(j.flatten(0, 1), h.flatten(0, 1).mT)
        else:
            total.baddbmm_(j, h.mT)
    elif isinstance(left, OuterBlock) and isinstance(right, OuterBlock):
        for k in range(left.sizes[0]):
            a = left.a[:, k].flatten(0, 1) @ right.a[:, k].flatten(0, 1).mT
            similar = a.view(len(left.a), left.positions, len(right.a), right.positions)
            _add_pairs(total, similar.add_(shift), left.g[:, :, k], right.g[:, :, k])
    elif isinstance(left, LookupBlock) and isinstance(right, LookupBlock):
        same = left.index[:, :, None, None] == right.index
        _add_pairs(total, same.to(left.g.dtype), left.g, right.g)
    else:
        raise TypeError(f"no kernel between a {type(left).__name__} and a {type(right).__name__}")


def _add_pairs(total: Tensor, similar: Tensor, g: Tensor, h: Tensor) -> None:
    """Adds Σ over positions of similar `[n, s, m, t]` times g·h, for g `[n, r, s, o]` and h `[m, q, t, o]`."""
    g, h = g.transpose(0, 1).flatten(1, 2), h.transpose(0, 1).flatten(1, 2)  # [r, n·s, o], [q, m·t, o]
    n, s, m, t = similar.shape
    if total.ndim == 4:
        products = (g.flatten(0, 1) @ h.flatten(0, 1).mT).view(len(g), n, s, len(h), m, t)
        similar = similar.unsqueeze(2)
    else:
        products = (g @ h.mT).view(len(g), n, s, m, t)
    if s == t == 1:
        total.addcmul_(products.view(total.shape), similar.squeeze(-1).squeeze(1))
    else:
        total.add_((products * similar).sum((2, -1)))


def _as_matrix(total: Tensor) -> Tensor:
    r, n, q, m = total.shape
    return total.view(r * n, q * m)
