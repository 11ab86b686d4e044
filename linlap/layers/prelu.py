"""PReLU's slopes: elementwise, one for all channels or one each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linlap.jacobian import DenseBlock
from linlap.layers.base import Taps, taps


@taps.register
def _(module: nn.PReLU, x: Tensor, n: int) -> Taps:
    size = module.num_parameters
    if x.shape[0] != n or (size > 1 and x.ndim < 2):
        return {}

    def weight(g: Tensor) -> DenseBlock:
        rows = g * x.clamp_max(0).unsqueeze(1)
        channels = rows.flatten(3).sum(-1) if rows.ndim > 3 else rows.reshape(*rows.shape[:2], -1)
        return DenseBlock(channels if size > 1 else channels.sum(-1, keepdim=True), torch.Size([size]))

    return {"weight": weight}
