"""linlap makes a trained PyTorch network say how sure it is.

It linearises the network at its trained weights, does Gaussian inference in that linear model, and predicts
with that same linear model.
"""

from linlap import metrics, ood
from linlap.baselines import ensemble, hmc, mfvi, temperature_scaling, train_map
from linlap.curvature import Diagonal, Full, Kron, LowRank
from linlap.errors import InputError, LinlapError, LinlapWarning, MemoryBudgetError, NotFiniteError
from linlap.evidence import Evidence
from linlap.fit import laplace
from linlap.gp import gaussian_process
from linlap.inducing import Everything, Sparse, Subset, TopM
from linlap.integrators import Exact, GaussHermite, LaplaceBridge, MonteCarlo, Probit
from linlap.io import load, save
from linlap.leave_one_out import LeaveOneOut
from linlap.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from linlap.network import Network
from linlap.predictives import BNN, GLM, MAP
from linlap.prior import Prior
from linlap.refine import GlmMap, GpMode, NaturalGradient, refine
from linlap.selection import select_prior
from linlap.uncertainty import uncertainty
from linlap.validation import Validation

__version__ = "0.1.0"

__all__ = [
    "BNN",
    "GLM",
    "MAP",
    "Bernoulli",
    "Categorical",
    "Diagonal",
    "Everything",
    "Evidence",
    "Exact",
    "Full",
    "GaussHermite",
    "Gaussian",
    "GlmMap",
    "GpMode",
    "HeteroscedasticGaussian",
    "InputError",
    "Kron",
    "LaplaceBridge",
    "LeaveOneOut",
    "LinlapError",
    "LinlapWarning",
    "LowRank",
    "MemoryBudgetError",
    "MonteCarlo",
    "NaturalGradient",
    "Network",
    "NotFiniteError",
    "Poisson",
    "Prior",
    "Probit",
    "Sparse",
    "Subset",
    "TopM",
    "Validation",
    "ensemble",
    "gaussian_process",
    "hmc",
    "laplace",
    "load",
    "metrics",
    "mfvi",
    "ood",
    "refine",
    "save",
    "select_prior",
    "temperature_scaling",
    "train_map",
    "uncertainty",
]
