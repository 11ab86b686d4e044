"""What a case of a network is."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Draw = Callable[[], Any]


def seeded(draw: Draw, *key: object) -> Any:
    """What `draw` gives, the same for the same key at every call; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(repr(key).encode()))
        return draw()


@dataclass(frozen=True)
class NetworkCase:
    """A tiny network in float64 and a few inputs for it; both the same at every call."""

    name: str
    make: Draw
    draw: Draw
    outputs: int
    train: bool = False  # left in training mode, which must make no difference
    stops: bool = False  # detaches a part of itself: autograd is not to agree with finite differences
    slow: bool = False

    def build(self) -> nn.Module:
        return seeded(lambda: stirred(self.make().double().train(self.train)), self.name, "model")

    def inputs(self) -> Any:
        return seeded(self.draw, self.name, "inputs")


def stirred(model: nn.Module) -> nn.Module:
    """No parameter or statistic is left at a value that hides mistakes, such as 0 or 1."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() == 1 or weight.std() == 0:
                weight.add_(0.3 * torch.randn_like(weight))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.1, 0.4)
    return model
