"""Transposed convolutions: the roles are swapped. Positions are the input pixels; the gradients come in patches."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from linlap.jacobian import OuterBlock
from linlap.layers.base import Taps, taps
from linlap.layers.convolution import channel_bias, patches, rows_of_patches

Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _gradient_patches(module: Transposed, g: Tensor, out: tuple[int, ...]) -> Tensor:
    """The outputs each input pixel reaches, `[n·r, k, s, (o / k)·kernel]`, from g `[n·r, o, ...]`."""
    amounts: list[int] = []
    for axis in reversed(range(len(out))):
        before = int(module.padding[axis])
        reach = (out[axis] - 1) * module.stride[axis] + module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        # Negative where the output has pixels beyond the last patch (output_padding): they are cut off.
        amounts += [before, reach - g.shape[2 + axis] - before]
    padded = F.pad(g, amounts)
    view = patches(padded, module.kernel_size, module.stride, module.dilation, out)
    return rows_of_patches(view, module.groups)


def _transposed(module: Transposed, x: Tensor, n: int) -> Taps:
    if x.ndim != len(module.kernel_size) + 2 or x.shape[0] != n:
        return {}
    shape, k = module.weight.shape, module.groups
    out = tuple(x.shape[2:])
    a = x.reshape(n, k, shape[0] // k, -1).mT

    def weight(g: Tensor) -> OuterBlock:
        rows = _gradient_patches(module, g.flatten(0, 1), out)
        return OuterBlock(a, rows.unflatten(0, g.shape[:2]), shape, flip=True)

    return {"weight": weight, "bias": channel_bias(shape[1] * k)}


for _kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    taps.register(_kind, _transposed)
