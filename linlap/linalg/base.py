"""What a positive definite operator is: the precision of a group of weights, known by its actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Operator = TypeVar("Operator", bound="SPD")


class SPD(ABC):
    """A symmetric positive definite matrix P acting on the last axis of vectors `[..., p]`.

    Laws, tested for every operator: `solve(matmul(v)) = v`; `matmul(v) = v @ dense()`;
    `logdet() = log det dense()`; and with noise e of unit covariance, `inverse_sqrt(e)` has covariance P⁻¹.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number p of weights."""

    @abstractmethod
    def matmul(self, v: Tensor) -> Tensor:
        """P v."""

    @abstractmethod
    def solve(self, v: Tensor) -> Tensor:
        """P⁻¹ v."""

    @abstractmethod
    def inverse_sqrt(self, noise: Tensor) -> Tensor:
        """R e for a root R with R Rᵀ = P⁻¹."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log det P, differentiable in the prior the operator was made from."""

    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of P⁻¹, `[p]`."""

    @abstractmethod
    def dense(self) -> Tensor:
        """P as a matrix `[p, p]`: for tests and small problems."""

    def to(self: Operator, dtype: torch.dtype) -> Operator:
        """The same operator with its tensors in another dtype."""
        given: Any = self
        changes = {f.name: _cast(getattr(given, f.name), dtype) for f in fields(given)}
        return replace(given, **changes)

    def working(self: Operator, dtype: torch.dtype) -> Operator:
        """The operator as contractions with a Jacobian of this dtype are to use it."""
        return self.to(dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor | SPD) else value
