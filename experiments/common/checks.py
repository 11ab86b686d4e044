"""What the paper claims, held against what was found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A claim of the paper, the numbers it was held against, and whether it holds of them."""

    claim: str
    found: str
    holds: bool

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'DOES NOT HOLD'}: {self.claim} ({self.found})"
