"""The ways of convolutions that only float32 takes: patches that are never made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import linlap as ll
from linlap.layers import convolution
from tests import reference
from tests.checks import close, noise

# Enough pixels for the weight gradient of a convolution to be used, and few enough for the oracle.
LAYERS: dict[str, tuple[tuple[int, ...], nn.Module]] = {
    "plain": ((2, 18, 18), nn.Conv2d(2, 3, 3)),
    "line": ((2, 300), nn.Conv1d(2, 3, 3, padding=1)),
    "cube": ((2, 8, 8, 8), nn.Conv3d(2, 2, 2)),
    "groups": ((4, 18, 18), nn.Conv2d(4, 6, 3, groups=2)),
    "depthwise": ((3, 18, 18), nn.Conv2d(3, 6, 3, groups=3, padding=1)),
    "stride": ((2, 35, 33), nn.Conv2d(2, 3, 3, stride=2)),
    "stride and remainder": ((2, 36, 50), nn.Conv2d(2, 3, 3, stride=(2, 3))),
    "dilation": ((2, 20, 22), nn.Conv2d(2, 3, 3, dilation=(2, 3), padding=1)),
    "circular": ((2, 16, 17), nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="circular")),
    "same": ((2, 17, 17), nn.Conv2d(2, 3, (2, 4), padding="same")),
}


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    shape, layer = LAYERS[name]
    torch.manual_seed(0)
    head: Any = nn.Linear(layer.weight.shape[0], 3)
    layer = copy.deepcopy(layer)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.4)
    return nn.Sequential(layer, nn.Tanh(), Mean(), head), shape


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).mean(2)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("structure", [ll.Kron(), ll.Diagonal(), ll.Full()], ids=["kron", "diagonal", "full"])
def test_all_ways_agree(name: str, dtype: torch.dtype, structure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, with the ways that float32 takes forced on and off; and float32 near that."""
    model, shape = network(name)
    x, y = noise(3, *shape), torch.tensor([0, 1, 2])

    def covariance(dtype: torch.dtype) -> torch.Tensor:
        data = (x.to(dtype), y)
        posterior = ll.laplace(model.to(dtype), data, ll.Categorical(), structure, 0.1, progress=False)
        return posterior.latent(x.to(dtype)).cov

    plain = covariance(torch.float64)
    if dtype == torch.float64:
        monkeypatch.setattr(convolution.Windows, "_convolutions_pay", True)
    close(covariance(dtype), plain, 1e-10 if dtype == torch.float64 else 1e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_jacobian_in_float32(name: str) -> None:
    model, shape = network(name)
    x = noise(2, *shape)
    f, J = reference.jacobian(model, x, reference.names_of(model))
    lin = ll.Network(model).linearize(x.float())
    close(lin.mean, f, 1e-5)
    close(lin.jacobian.dense(), J, 1e-5)
