"""Embedding tables, without one-hot vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linlap.jacobian import LookupBlock
from linlap.layers.base import Taps, seeded_positions, taps


@taps.register
def _(module: nn.Embedding, x: Tensor, n: int) -> Taps:
    index = x.reshape(n, -1)
    # The padding row does not train: autograd gives it no gradient, and neither do we.
    counted = torch.ones_like(index) if module.padding_idx is None else (index != module.padding_idx).long()

    def weight(g: Tensor) -> LookupBlock:
        rows = seeded_positions(g, module.embedding_dim)
        return LookupBlock(index, rows * counted[:, None, :, None].to(rows.dtype), module.weight.shape, counted)

    return {"weight": weight}
