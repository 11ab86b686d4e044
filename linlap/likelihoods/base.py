"""What a likelihood has to know, and the checks of labels that all of them share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from linlap.errors import InputError, NotFiniteError


class Likelihood(ABC):
    """p(y | f) for outputs f `[n, C]`; the n observations are independent given f.

    `y` is canonical (as `prepare` returns it) wherever a method takes both. Methods that take f alone, and
    `log_prob`, also accept f with further leading axes.
    """

    discrete_classes: ClassVar[bool] = False

    @abstractmethod
    def check_outputs(self, outputs: int) -> None:
        """Raise an `InputError` if a network with this many outputs does not fit."""

    @abstractmethod
    def prepare(self, y: Any, f: Tensor) -> Tensor:
        """y, checked against f, in the shape, dtype and device every other method expects."""

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f) `[n]`, summed over outputs."""

    @abstractmethod
    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        """∂ log p(y | f) / ∂f `[n, C]`."""

    @abstractmethod
    def hessian_sqrt(self, f: Tensor) -> Tensor:
        """S `[n, C, r]` with S Sᵀ = Λ = −∂² log p(y | f) / ∂f², finite however saturated f is.

        Where that matrix depends on y, its expectation over y (the Fisher information).
        """

    @abstractmethod
    def observe(self, f: Tensor) -> td.Distribution:
        """p(y | f) as a distribution."""

    @abstractmethod
    def mean_of(self, f: Tensor) -> Tensor:
        """E[y | f] `[..., n, M]`; for classes their probabilities."""

    @abstractmethod
    def variance_of(self, f: Tensor) -> Tensor:
        """Var[y | f] `[..., n, M]`, each output (or class indicator) by itself."""

    def mixture(self, f_samples: Tensor, log_weights: Tensor | None = None) -> td.Distribution:
        """Σ_s w_s p(y | f_s), f_samples `[S, n, C]`; log_weights broadcasts to `[S, n, 1]`, None: equal."""
        count, n = f_samples.shape[:2]
        logits = sample_log_weights(f_samples, log_weights).expand(count, n, 1)[..., 0].T
        return td.MixtureSameFamily(td.Categorical(logits=logits), self.observe(f_samples.transpose(0, 1)))


class ClassLikelihood(Likelihood):
    """A likelihood over classes: averages of p(y | f) over f are again of the family."""

    discrete_classes: ClassVar[bool] = True

    @abstractmethod
    def entropy_of(self, f: Tensor) -> Tensor:
        """Entropy of p(y | f) in nats `[..., n]`."""

    @abstractmethod
    def pool(self, f_samples: Tensor, log_weights: Tensor | None = None) -> Tensor:
        """The f̄ `[n, C]` with p(y | f̄) = Σ_s w_s p(y | f_s)."""

    def mixture(self, f_samples: Tensor, log_weights: Tensor | None = None) -> td.Distribution:
        return self.observe(self.pool(f_samples, log_weights))


def sample_log_weights(f_samples: Tensor, log_weights: Tensor | None) -> Tensor:
    """The weights as given, or equal ones `[S, 1, 1]`."""
    if log_weights is not None:
        return log_weights
    count = f_samples.shape[0]
    return f_samples.new_full((count, 1, 1), -math.log(count))


def exponent_limit(dtype: torch.dtype) -> float:
    """Exponents are clamped here, at half of what the dtype holds, so that products with e^f stay finite."""
    return 0.5 * math.log(torch.finfo(dtype).max)


def bounded_exp(x: Tensor) -> Tensor:
    return x.clamp_max(exponent_limit(x.dtype)).exp()


def check_pair(likelihood: Likelihood, y: Any, f: Tensor) -> None:
    """f is `[n, C]` with a C that fits, and y is a tensor of real numbers with n rows."""
    if f.ndim != 2 or not f.is_floating_point():
        raise InputError(f"outputs of shape {tuple(f.shape)} and {f.dtype}; pass floating-point f of shape [n, C].")
    likelihood.check_outputs(f.shape[1])
    if not isinstance(y, Tensor):
        raise InputError(f"y is a {type(y).__name__}, not a tensor; pass torch.as_tensor(y).")
    if y.is_complex():
        raise InputError(f"y has the complex dtype {y.dtype}; pass real labels.")
    if y.ndim == 0 or y.shape[0] != f.shape[0]:
        raise InputError(f"y has shape {tuple(y.shape)} for {f.shape[0]} inputs; pass one row of y for each input.")


def real_targets(y: Tensor, f: Tensor, columns: int) -> Tensor:
    """y as `[n, columns]` with f's dtype and device; `[n]` is enough for one column. Finite."""
    n = f.shape[0]
    if y.ndim == 1 and columns == 1:
        y = y.unsqueeze(1)
    if y.shape != (n, columns):
        wanted = f"[{n}, {columns}]" + (f" or [{n}]" if columns == 1 else "")
        raise InputError(
            f"y has shape {tuple(y.shape)} for outputs of shape {tuple(f.shape)}; pass y of shape {wanted}."
        )
    y = y.to(device=f.device, dtype=f.dtype)
    finite = torch.isfinite(y)
    if not finite.all():
        raise NotFiniteError(f"{first(y, ~finite)}; every label must be a finite number: drop or impute those rows.")
    return y


def first(y: Tensor, bad: Tensor) -> str:
    """'y[3, 0] is 7.0 (5 such labels)' for the first entry marked bad."""
    places = bad.nonzero()
    place = places[0].tolist()
    more = f" ({len(places)} such labels)" if len(places) > 1 else ""
    return f"y[{', '.join(map(str, place))}] is {y[tuple(place)].item()}{more}"
