"""Inference in the linear model: posteriors whose mean is its mode, or the best Gaussian's, and not only near it."""

from linlap.refine.base import Method, refine
from linlap.refine.glm_map import GlmMap
from linlap.refine.gp_mode import GpMode
from linlap.refine.natural_gradient import NaturalGradient

__all__ = ["GlmMap", "GpMode", "Method", "NaturalGradient", "refine"]
