"""Local reparameterisation: noise at the outputs of layers in place of noise in their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from linlap.network import Network
from linlap.network.inputs import take
from linlap.types import Inputs, Params

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_FUNCTIONS = frozenset(
    (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
)
Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A linear function of inputs and weights, plus a bias."""
Call = Callable[[str, Layer, Tensor, Tensor | None], Tensor]
"""Of the weights' name, the layer, its inputs and its bias: its outputs."""


class _Layers(TorchFunctionMode):
    """Within it, layers called with the weights of some tables are computed by a function of one's own instead."""

    def __init__(
        self, params: Params, names: frozenset[str], call: Callable[[str, Layer, Tensor, Any], Tensor]
    ) -> None:
        super().__init__()
        self._names = {id(params[name]): name for name in names}
        self._call = call

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _FUNCTIONS:
            return func(*args, **kwargs)
        given = dict(zip(("input", "weight", "bias"), args[:3], strict=False))
        given |= {key: kwargs.pop(key) for key in ("input", "weight", "bias") if key in kwargs}
        name = self._names.get(id(given["weight"]))
        if name is None:
            return func(*args, **kwargs) if len(given) <= len(args) else func(**given, **kwargs)

        def layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            result: Tensor = func(x, weight, bias, *args[3:], **kwargs)
            return result

        return self._call(name, layer, given["input"], given.get("bias"))


def local_weights(network: Network, x: Inputs) -> frozenset[str]:
    """Weights used once for each input batch, by a linear or convolutional layer and by nothing else."""
    owners = (module.weight for module in network.model.modules() if type(module) in _LAYERS)
    own = {id(weight) for weight in owners}
    names = frozenset(name for name, p in network.theta.items() if id(p) in own)
    few = take(x, 0, 2)
    with torch.no_grad():
        plain = network.outputs_at({}, few)
        if _used_so(network, names, few, plain):
            return names
        return frozenset(name for name in names if _used_so(network, frozenset([name]), few, plain))


def _used_so(network: Network, names: frozenset[str], x: Inputs, plain: Tensor) -> bool:
    """Without their numbers f is still the same: each layer that asked for them got them, once."""
    calls: list[str] = []
    missing = {name: torch.full_like(network.theta[name], torch.nan) for name in names}

    def call(name: str, layer: Layer, given: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(name)
        return layer(given, network.theta[name], bias)

    with _Layers(missing, names, call):
        f = network.outputs_at(missing, x)
    return sorted(calls) == sorted(names) and torch.allclose(f, plain, rtol=1e-4, atol=1e-6)


def sampled(network: Network, mean: Params, deviation: Params, local: frozenset[str], x: Inputs) -> Tensor:
    """f `[n, C]` under weights N(mean, deviation²).

    Layers of the weights `local` are sampled at their outputs, for each input and position by itself; all other
    weights, biases among them, are drawn, the same for all inputs. Numbers are torch's own generator's.
    """

    def drawn(name: str, m: Tensor) -> Tensor:
        return m + deviation[name] * torch.randn(m.shape, dtype=m.dtype, device=m.device)

    def noisy(name: str, layer: Layer, given: Tensor, bias: Tensor | None) -> Tensor:
        centre = layer(given, params[name], bias)
        # Where all inputs are zero, the root's slope would be infinite, and its product with theirs NaN.
        variance = layer(given.square(), deviation[name].square(), None) + torch.finfo(centre.dtype).tiny
        return centre + variance.sqrt() * torch.randn(centre.shape, dtype=centre.dtype, device=centre.device)

    params = {name: m if name in local else drawn(name, m) for name, m in mean.items()}
    with _Layers(params, local, noisy):
        return network.outputs_at(params, x)
