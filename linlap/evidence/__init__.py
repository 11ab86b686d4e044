"""The prior that the evidence prefers, found on what a posterior has worked out already."""

from linlap.evidence.evidence import Evidence, Maximum

__all__ = ["Evidence", "Maximum"]
