"""The Gaussian prior on the weights, with the temperature of the posterior it leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linlap.errors import InputError

Precision = float | Tensor | Mapping[str, float | Tensor]


@dataclass(frozen=True, eq=False)
class Prior:
    """p(θ) = N(0, P0⁻¹) with P0 diagonal.

    `precision` is one number δ; a flat tensor of one number per weight; or a mapping from names of parameters
    or of modules to numbers or to tensors of the parameter's shape, which must cover every parameter (the
    longest name that fits counts; "" is everything). `temperature` T scales the posterior: its covariance
    is T (H + P0)⁻¹. Tensors may require gradients; they are copied, so that later changes in place, as
    optimisers make them, are another prior's.
    """

    precision: Precision = 1.0
    temperature: float | Tensor = 1.0

    def __post_init__(self) -> None:
        given = self.precision.values() if isinstance(self.precision, Mapping) else [self.precision]
        if not given:
            raise InputError("the prior precision is an empty mapping; name the parameters or modules, or '' for all.")
        for value in given:
            _check_positive(value, "prior precision")
        _check_positive(self.temperature, "temperature")
        if torch.as_tensor(self.temperature, device="cpu").numel() != 1:
            raise InputError(f"the temperature is {self.temperature!r}; pass one number for the whole posterior.")
        if isinstance(self.precision, Mapping):
            object.__setattr__(self, "precision", {name: _copied(value) for name, value in self.precision.items()})
        else:
            object.__setattr__(self, "precision", _copied(self.precision))
        object.__setattr__(self, "temperature", _copied(self.temperature))

    @property
    def is_uniform(self) -> bool:
        """Whether all weights share one precision."""
        if isinstance(self.precision, Mapping):
            return False
        return not isinstance(self.precision, Tensor) or self.precision.numel() == 1

    def times(self, factor: float | Tensor) -> Prior:
        """The prior with every precision multiplied by one number; the temperature stays."""
        _check_positive(factor, "factor on a prior precision")
        if isinstance(self.precision, Mapping):
            return Prior({name: value * factor for name, value in self.precision.items()}, self.temperature)
        return Prior(self.precision * factor, self.temperature)

    def over(self, base: Prior, shapes: Mapping[str, torch.Size], device: torch.device) -> Tensor | None:
        """The number by which this prior's precision is another's, where it is one number."""
        ours, theirs = (prior.by_parameter(shapes, device) for prior in (self, base))
        ratios = {name: ours[name] / theirs[name] for name in ours}
        first = next(iter(ratios.values())).flatten()[0]
        same = all(torch.allclose(ratio, first.expand_as(ratio), rtol=1e-12, atol=0) for ratio in ratios.values())
        return first if same else None

    def by_parameter(self, shapes: Mapping[str, torch.Size], device: torch.device) -> dict[str, Tensor]:
        """For each parameter its precision in float64: one number, or one an entry `[p]`."""
        if isinstance(self.precision, Mapping):
            self._check_names(shapes)
            return {name: self._named(name, shape, device) for name, shape in shapes.items()}
        value = _as_tensor(self.precision, device)
        if value.numel() == 1:
            return {name: value.reshape(()) for name in shapes}
        sizes = [shape.numel() for shape in shapes.values()]
        if value.ndim != 1 or value.numel() != sum(sizes):
            raise InputError(
                f"a prior precision of shape {tuple(value.shape)} for {sum(sizes)} weights; pass one number, a flat "
                "tensor with one number per weight, or a mapping from parameter or module names."
            )
        return dict(zip(shapes, value.split(sizes), strict=True))

    def groups(self, shapes: Mapping[str, torch.Size], device: torch.device) -> list[tuple[tuple[str, ...], Tensor]]:
        """Parameters that share one number, with it; and by themselves those with one an entry `[p]`."""
        values = self.by_parameter(shapes, device)
        found: dict[str, list[str]] = {}
        for name, value in values.items():
            found.setdefault(name if value.ndim else f"key {self._key(name)}", []).append(name)
        return [(tuple(names), values[names[0]]) for names in found.values()]

    def _key(self, name: str) -> str:
        """The longest key of a mapping that fits a parameter; "" without a mapping."""
        keys = self.precision if isinstance(self.precision, Mapping) else ()
        return max((key for key in keys if not key or _fits(key, name)), key=len, default="")

    def _check_names(self, shapes: Mapping[str, torch.Size]) -> None:
        if not isinstance(self.precision, Mapping):
            return
        unused = [key for key in self.precision if key and not any(_fits(key, name) for name in shapes)]
        if unused:
            shown = ", ".join(list(shapes)[:12]) + (", …" if len(shapes) > 12 else "")
            raise InputError(
                f"the prior names {unused[0]!r}, which is neither an inferred parameter nor a module that holds one. "
                f"There are: {shown}."
            )

    def _named(self, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        if not isinstance(self.precision, Mapping):
            raise TypeError("only for mappings")
        key = self._key(name)
        if key not in self.precision:
            raise InputError(
                f"the prior has no precision for {name!r}; add that name, its module's, or '' for all others."
            )
        value = _as_tensor(self.precision[key], device)
        if value.numel() == 1:
            return value.reshape(())
        if value.shape != shape:
            raise InputError(
                f"the prior precision for {name!r} has shape {tuple(value.shape)}, the parameter {tuple(shape)}; "
                "pass one number or a tensor of the parameter's shape."
            )
        return value.flatten()


def _fits(key: str, name: str) -> bool:
    """Whether a key names a parameter, or a module that holds it."""
    return name == key or name.startswith(f"{key}.")


def _copied(value: Any) -> Any:
    """A number as a float; of a tensor a copy, with the same derivative whatever mode this is in; arrays as tensors."""
    if not isinstance(value, Tensor):
        value = torch.as_tensor(value, dtype=torch.float64, device="cpu")
        return value.clone() if value.ndim else float(value)
    with torch.inference_mode(False), torch.enable_grad():
        return value.clone()


def _as_tensor(value: float | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device)


def _check_positive(value: float | Tensor, what: str) -> None:
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the {what} is {value!r}; pass a positive number or a tensor of them.") from error
    if tensor.numel() == 0 or not (torch.isfinite(tensor).all() and (tensor > 0).all()):
        raise InputError(f"the {what} is {value!r}; it must be positive and finite, for instance 1.0.")
