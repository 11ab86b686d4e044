"""Posteriors: what is believed after the data, ready to be asked about inputs."""

from linlap.posteriors.drawn import Diagnostics, SamplePosterior
from linlap.posteriors.function import FunctionPosterior, Projection
from linlap.posteriors.refinement import Refinement
from linlap.posteriors.weight import WeightPosterior, as_prior

__all__ = [
    "Diagnostics",
    "FunctionPosterior",
    "Projection",
    "Refinement",
    "SamplePosterior",
    "WeightPosterior",
    "as_prior",
]
