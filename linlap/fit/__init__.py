"""From models and data to posteriors over weights."""

from linlap.fit.laplace import laplace
from linlap.fit.task import check_kinds

__all__ = ["check_kinds", "laplace"]
