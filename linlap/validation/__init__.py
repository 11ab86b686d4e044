"""Choosing the prior and the temperature by held-out data."""

from linlap.validation.grid import Axis
from linlap.validation.validation import Minimum, Validation

__all__ = ["Axis", "Minimum", "Validation"]
