"""Linear layers, on any number of positions."""

from __future__ import annotations

from torch import Tensor, nn

from linlap.jacobian import OuterBlock
from linlap.layers.base import Taps, positions, seeded_positions, summed, taps


@taps.register
def _(module: nn.Linear, x: Tensor, n: int) -> Taps:
    shape = module.weight.shape

    def weight(g: Tensor) -> OuterBlock:
        a = positions(x, n, module.in_features).unsqueeze(1)
        return OuterBlock(a, seeded_positions(g, module.out_features).unsqueeze(2), shape)

    return {"weight": weight, "bias": summed(shape[:1])}
