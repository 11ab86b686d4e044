"""How tensors are compared, and random ones made, all over the tests."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    """Relative to the largest entry, so that entries which are zero but for rounding need not agree relatively."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} for {tuple(expected.shape)}"
    error = float((actual.double() - expected.double()).abs().max()) if expected.numel() else 0.0
    scale = float(expected.double().abs().max()) if expected.numel() else 1.0
    assert error <= tolerance * (scale or 1.0), f"error {error:.2e} beside {scale:.2e}"


def noise(*shape: int, seed: object = 0) -> Tensor:
    """Standard normal numbers in float64, the same for the same shape and seed."""
    key = zlib.crc32(repr((shape, seed)).encode())
    return torch.randn(*shape, generator=torch.Generator().manual_seed(key), dtype=torch.float64)


def spd(size: int, *batch: int, seed: object = 0) -> Tensor:
    """Well-conditioned positive definite matrices `[*batch, size, size]`."""
    root = noise(*batch, size, size, seed=seed) / size**0.5
    return root @ root.mT + 0.3 * torch.eye(size, dtype=torch.float64)


def orthogonal(size: int, *batch: int, seed: object = 0) -> Tensor:
    return torch.linalg.qr(noise(*batch, size, size, seed=seed)).Q


def varied(size: int, low: float = 0.5, high: float = 2.0) -> Tensor:
    """Different positive numbers, in no order that a transposition would keep."""
    spread = torch.linspace(low, high, size, dtype=torch.float64)
    return spread[torch.randperm(size, generator=torch.Generator().manual_seed(size))]


def rest_of(model: nn.Module) -> dict[str, Any]:
    """All that a user could find changed on a model: weights, buffers, gradients, flags, modes, hooks, attributes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    found: dict[str, Any] = {"rng": torch.get_rng_state()}
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        grad = None if value.grad is None else value.grad.clone()
        found[name] = (id(value), value.detach().clone(), value.requires_grad, value._version, grad)
    for name, module in model.named_modules():
        counts = [dict(getattr(module, kind)) for kind in hooks]
        found[f"module {name}"] = (id(module), module.training, counts, sorted(map(str, vars(module))))
    return found


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, NaN included, through tuples, lists and dicts."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool((one.eq(other) | (one.ne(one) & other.ne(other))).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
