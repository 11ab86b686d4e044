"""Σ_q J_c w_q J_d on a GPU in one reading of J.

The library's batched product takes a twentieth of the memory's rate where the result is small (r × r) and what is
summed over is long. Here each program reads a stretch of one input's rows once, and the small results are added up
afterwards. Imported only where there is a GPU; what it cannot do is left to the plain product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from linlap.linalg import tf32_allowed

_WIDTH = tl.constexpr(128)
"""Entries of a row that are read at a time."""


@triton.jit
def _kernel(j, w, out, r, q, stretch, R: tl.constexpr, PRECISION: tl.constexpr):
    part, group, k = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.program_id(2).to(tl.int64) * k + group
    c = tl.arange(0, R)
    total = tl.zeros((R, R), dtype=tl.float32)
    for start in range(part * stretch, min((part + 1) * stretch, q), _WIDTH):
        at = start + tl.arange(0, _WIDTH)
        inside = at < q
        rows = tl.load(
            j + row * r * q + c[:, None] * q + at[None, :], mask=(c[:, None] < r) & inside[None, :], other=0.0
        )
        weight = tl.load(w + group * q + at, mask=inside, other=0.0)
        total = tl.dot(rows * weight[None, :], tl.trans(rows), total, input_precision=PRECISION)
    place = out + ((row * tl.num_programs(0) + part) * r + c[:, None]) * r + c[None, :]
    tl.store(place, total, mask=(c[:, None] < r) & (c[None, :] < r))


def serves(j: Tensor, weights: Tensor) -> bool:
    """Whether `gram` can take J `[n, k, r, o, i]`, and should."""
    r, q = j.shape[2], j.shape[3] * j.shape[4]
    fits = j.dtype == torch.float32 and j.is_contiguous() and r <= 64 and q >= 1024 and len(j) < 1 << 16
    return fits and not (j.requires_grad or weights.requires_grad)


def gram(j: Tensor, weights: Tensor) -> Tensor:
    """J diag(weights) Jᵀ per input, `[n, r, r]`, for J `[n, k, r, o, i]` and weights `[k, o, i]`."""
    n, k, r, o, i = j.shape
    q, width = o * i, _WIDTH.value
    splits = max(1, min(-(-q // (16 * width)), -(-4096 // (n * k))))
    stretch = -(-q // (splits * width)) * width
    out = j.new_empty(n, k, splits, r, r)
    weights = weights.to(j.dtype).reshape(k, q).contiguous()
    precision = "tf32" if tf32_allowed() else "ieee"
    with torch.cuda.device(j.device):
        _kernel[(splits, k, n)](j, weights, out, r, q, stretch, max(16, triton.next_power_of_2(r)), precision)
    return out.flatten(1, 2).sum(1)
