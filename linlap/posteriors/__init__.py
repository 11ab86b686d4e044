"""Posteriors: what is believed after the data, ready to be asked about inputs."""

from linlap.posteriors.weight import WeightPosterior, as_prior

__all__ = ["WeightPosterior", "as_prior"]
