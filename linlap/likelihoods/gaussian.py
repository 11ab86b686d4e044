"""Regression with noise of known size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError
from linlap.likelihoods.base import Likelihood, check_pair, real_targets

_HALF_LOG_2PI = 0.9189385332046727


@dataclass(frozen=True, eq=False)
class Gaussian(Likelihood):
    """y = f + noise·ε, ε standard normal; `noise` is the deviation of all outputs, or one for each."""

    noise: float | Sequence[float] | Tensor = 1.0

    def __post_init__(self) -> None:
        try:
            noise: Any = self.noise
            if not isinstance(noise, Tensor):
                noise = torch.as_tensor(np.asarray(noise), device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"noise={self.noise!r} is not a number; pass a standard deviation > 0.") from error
        if noise.ndim > 1 or noise.numel() == 0 or noise.is_complex() or noise.dtype == torch.bool:
            raise InputError(f"noise={self.noise!r}; pass one standard deviation > 0, or one for each output.")
        if not (torch.isfinite(noise) & (noise > 0)).all():
            raise InputError(f"noise={self.noise!r}; a standard deviation must be finite and > 0.")
        if not isinstance(self.noise, Tensor):  # numbers and arrays of other libraries, as can be saved
            object.__setattr__(self, "noise", tuple(noise.tolist()) if noise.ndim else float(noise))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gaussian):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[float, ...]:
        return tuple(torch.as_tensor(self.noise, dtype=torch.float64, device="cpu").detach().reshape(-1).tolist())

    def scale(self, f: Tensor) -> Tensor:
        """The noise for each output `[C]`, like f."""
        noise = torch.as_tensor(self.noise, dtype=f.dtype, device=f.device)
        return noise.expand(f.shape[-1])

    def check_outputs(self, outputs: int) -> None:
        count = torch.as_tensor(self.noise, device="cpu").numel()
        if outputs < 1 or count not in (1, outputs):
            raise InputError(f"{count} noise levels for {outputs} outputs; pass one number, or one for each output.")

    def prepare(self, y: Any, f: Tensor) -> Tensor:
        check_pair(self, y, f)
        return real_targets(y, f, f.shape[1])

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        scale = self.scale(f)
        return (-0.5 * ((y - f) / scale).square() - scale.log() - _HALF_LOG_2PI).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return (y - f) / self.scale(f).square()

    def hessian_sqrt(self, f: Tensor) -> Tensor:
        root = self.scale(f).reciprocal().diag_embed()
        return root.expand(*f.shape, f.shape[-1])

    def observe(self, f: Tensor) -> td.Distribution:
        return td.Independent(td.Normal(f, self.scale(f).expand_as(f)), 1)

    def mean_of(self, f: Tensor) -> Tensor:
        return f

    def variance_of(self, f: Tensor) -> Tensor:
        return self.scale(f).square().expand_as(f)
