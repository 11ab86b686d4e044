"""Small networks and data that the baselines' tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.checks import noise


def tanh_network(seed: int, *, hidden: int = 5, outputs: int = 1) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def classes(seed: int, n: int = 30) -> tuple[Tensor, Tensor]:
    """Two classes that one input nearly decides."""
    x = noise(n, 2, seed=seed)
    return x, (x[:, 0] + 0.3 * noise(n, seed=seed) > 0).long()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Picky(nn.Module):
    """Decides by its data what to compute, which torch.vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.layer(x)
        return f * 2 if f.sum().item() > 0 else f
