"""How observations y follow from the network's outputs f; one likelihood a file."""

from linlap.likelihoods.base import ClassLikelihood, Likelihood
from linlap.likelihoods.bernoulli import Bernoulli
from linlap.likelihoods.categorical import Categorical
from linlap.likelihoods.gaussian import Gaussian
from linlap.likelihoods.heteroscedastic import HeteroscedasticGaussian
from linlap.likelihoods.poisson import Poisson

__all__ = [
    "Bernoulli",
    "Categorical",
    "ClassLikelihood",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Poisson",
]
