"""Scale and shift of normalisation layers: elementwise, so their blocks are small and dense."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linlap.jacobian import DenseBlock
from linlap.layers.base import Rule, Taps, taps

_Batch = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_Instance = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


def _elementwise(normalise: Callable[[], Tensor], axes: Sequence[int], shape: torch.Size) -> Taps:
    """Scale: gradient times normalised input; shift: the gradient; both summed over all other axes."""

    def weight(g: Tensor) -> DenseBlock:
        return _reduced(g * normalise().unsqueeze(1), axes, shape)

    return {"weight": weight, "bias": lambda g: _reduced(g, axes, shape)}


def _reduced(g: Tensor, axes: Sequence[int], shape: torch.Size) -> DenseBlock:
    """Sum `[n, r, ...]` over all axes but the inputs, the seeds and those of the parameter."""
    kept = {axis + 1 for axis in axes}  # the seeds take axis 1
    others = [axis for axis in range(2, g.ndim) if axis not in kept]
    j = g.sum(others) if others else g
    return DenseBlock(j.flatten(2), shape)


def _batch(module: _Batch, x: Tensor, n: int) -> Taps:
    mean, var = module.running_mean, module.running_var
    # Without running statistics the layer couples the inputs of a batch; the network refuses that by itself.
    if x.shape[0] != n or mean is None or var is None:
        return {}
    return _elementwise(lambda: F.batch_norm(x, mean, var, eps=module.eps), (1,), mean.shape)


def _instance(module: _Instance, x: Tensor, n: int) -> Taps:
    if x.shape[0] != n or not module.affine:
        return {}
    mean, var = module.running_mean, module.running_var

    def normalise() -> Tensor:
        return F.instance_norm(x, mean, var, use_input_stats=mean is None, eps=module.eps)

    return _elementwise(normalise, (1,), module.weight.shape)


for _batch_kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
    taps.register(_batch_kind, _batch)
for _instance_kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    taps.register(_instance_kind, _instance)


@taps.register
def _(module: nn.GroupNorm, x: Tensor, n: int) -> Taps:
    if x.shape[0] != n:
        return {}
    shape = torch.Size([module.num_channels])
    return _elementwise(lambda: F.group_norm(x, module.num_groups, eps=module.eps), (1,), shape)


@taps.register
def _(module: nn.LayerNorm, x: Tensor, n: int) -> Taps:
    shape = torch.Size(module.normalized_shape)
    return _last_axes(lambda: F.layer_norm(x, shape, eps=module.eps), shape, n)


@taps.register
def _(module: nn.RMSNorm, x: Tensor, n: int) -> Taps:
    shape = torch.Size(module.normalized_shape)
    return _last_axes(lambda: F.rms_norm(x, shape, eps=module.eps), shape, n)


def _last_axes(normalise: Callable[[], Tensor], shape: torch.Size, n: int) -> Taps:
    """Taps of a norm over the last axes: whatever lies between them and the inputs is shared positions."""
    rules = _elementwise(lambda: normalise().reshape(n, -1, *shape), range(2, 2 + len(shape)), shape)
    return {name: _spread(rule, shape) for name, rule in rules.items()}


def _spread(rule: Rule, shape: torch.Size) -> Rule:
    return lambda g: rule(g.reshape(*g.shape[:2], -1, *shape))
