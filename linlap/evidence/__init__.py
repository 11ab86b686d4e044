"""The prior that the evidence prefers, found on what a posterior has worked out already."""

from linlap.evidence.evidence import Evidence, Maximum
from linlap.evidence.scaling import scaled
from linlap.evidence.structures import log_det

__all__ = ["Evidence", "Maximum", "log_det", "scaled"]
