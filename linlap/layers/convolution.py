"""Convolutions in one to three dimensions: the positions are the output pixels, their inputs are patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linlap.jacobian import DenseBlock, LazyRows, OuterBlock
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
    n = view.shape[0]
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
        return DenseBlock(g.flatten(3).sum(-1), torch.Size([channels]))

    return rule


@dataclass(frozen=True, eq=False)
class Windows:
    """The patches that a convolution sees in a padded input `[n, c, ...]`, made when asked for."""

    module: Convolution
    padded: Tensor
    out: torch.Size

    @property
    def shape(self) -> torch.Size:
        k = self.module.groups
        return torch.Size((len(self.padded), k, self.out.numel(), self.module.weight[0].numel()))

    def tensor(self) -> Tensor:
        module = self.module
        return rows_of_patches(
            patches(self.padded, module.kernel_size, module.stride, module.dilation, self.out), module.groups
        )

    def rotated(self, basis: Tensor) -> Tensor:
        """Patches times a basis: a convolution whose kernels are the basis vectors, which needs no patches."""
        module = self.module
        if not self._convolutions_pay:
            return (basis.mT @ self.tensor().mT).mT
        kernels = basis.mT.reshape(-1, *module.weight.shape[1:])
        convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(self.out)]
        done = convolve(self.padded, kernels, None, module.stride, 0, module.dilation, module.groups)
        return done.reshape(len(done), module.groups, -1, self.out.numel()).mT

    def products(self, rows: Tensor) -> Tensor | None:
        """Rows times patches: what a convolution's own weight gradient computes, one input at a time.

        It pays for many positions and few results; limits measured on a CPU with AVX-512.
        """
        n, k, q, s = rows.shape
        module = self.module
        per_group = module.weight[0].numel()
        if not self._convolutions_pay or s < 256 or k * q * per_group > 1 << 21:
            return None
        kernels = self.padded.new_empty(()).expand(k * q, *module.weight.shape[1:])
        none = [0] * len(self.out)
        seeds = rows.reshape(n, 1, k * q, *self.out)
        back = torch.ops.aten.convolution_backward
        found = [
            back(
                *(g, x.unsqueeze(0), kernels, None, module.stride, none, module.dilation, False, none, k),
                output_mask=[False, True, False],
            )[1]
            for g, x in zip(seeds, self.padded, strict=True)
        ]
        return torch.stack(found).reshape(n, k, q, per_group)

    @property
    def _convolutions_pay(self) -> bool:
        """On CPUs in float32; elsewhere convolutions gain nothing, or round to fewer digits than products do."""
        return self.padded.device.type == "cpu" and self.padded.dtype == torch.float32

    def split(self, size: int) -> list[Tensor | LazyRows]:
        return [Windows(self.module, part, self.out) for part in self.padded.split(size)]

    def to(self, dtype: torch.dtype) -> LazyRows:
        return Windows(self.module, self.padded.to(dtype), self.out)


def _convolution(module: Convolution, x: Tensor, n: int) -> Taps:
    if x.ndim != len(module.kernel_size) + 2 or x.shape[0] != n:
        return {}
    shape, k = module.weight.shape, module.groups

    def weight(g: Tensor) -> OuterBlock:
        split = g.reshape(*g.shape[:2], k, shape[0] // k, -1)  # [n, r, k, o, s]
        return OuterBlock(Windows(module, _padded(module, x), g.shape[3:]), split.mT, shape)

    return {"weight": weight, "bias": channel_bias(shape[0])}


for _kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    taps.register(_kind, _convolution)
