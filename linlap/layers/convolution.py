"""Convolutions in one to three dimensions: the positions are the output pixels, their inputs are patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linlap.jacobian import DenseBlock, OuterBlock
from linlap.layers.base import Rule, Taps, taps

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Tensor:
    """All windows of a padded input `[n, c, ...]`, as a strided view `[n, c, *out, *kernel]`."""
    base = x.stride()[2:]
    size = (*x.shape[:2], *out, *kernel)
    steps = [b * s for b, s in zip(base, stride, strict=True)]
    inner = [b * d for b, d in zip(base, dilation, strict=True)]
    return x.as_strided(size, (*x.stride()[:2], *steps, *inner))


def rows_of_patches(view: Tensor, groups: int) -> Tensor:
    """Windows `[n, c, *out, *kernel]` as `[n, k, s, (c / k)·kernel]`, copied once.

    In memory the positions come last, as they do in the input: copying so moves whole rows of pixels, which is
    several times faster than gathering each window together, and products read either order alike.
    """
    d = (view.ndim - 2) // 2
    n, c = view.shape[:2]
    out, kernel = range(2, 2 + d), range(2 + d, 2 + 2 * d)
    positions = view.shape[2 : 2 + d].numel()
    return view.permute(0, 1, *kernel, *out).reshape(n, groups, -1, positions).mT


def _padded(module: Convolution, x: Tensor) -> Tensor:
    # The module keeps the amounts for F.pad, uneven 'same' padding included, last axis first.
    amounts = module._reversed_padding_repeated_twice
    if not any(amounts):
        return x
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, list(amounts), mode=mode)


def channel_bias(channels: int) -> Rule:
    """Rule of a bias on axis 1 of an output `[n, c, ...]`."""

    def rule(g: Tensor) -> DenseBlock:
        rows = g.flatten(3)  # [n, r, c, s]
        return DenseBlock(rows.sum(-1), torch.Size([channels]), rows.mT)

    return rule


def _convolution(module: Convolution, x: Tensor, n: int) -> Taps:
    if x.ndim != len(module.kernel_size) + 2 or x.shape[0] != n:
        return {}
    shape, k = module.weight.shape, module.groups

    def weight(g: Tensor) -> OuterBlock:
        view = patches(_padded(module, x), module.kernel_size, module.stride, module.dilation, g.shape[3:])
        split = g.reshape(*g.shape[:2], k, shape[0] // k, -1)  # [n, r, k, o, s]
        return OuterBlock(rows_of_patches(view, k), split.mT, shape)

    return {"weight": weight, "bias": channel_bias(shape[0])}


for _kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    taps.register(_kind, _convolution)
