"""laplace-torch 0.3 with each of its curvature backends."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.base import OUTPUTS, PRIOR_PRECISION, Kind, Library, Structure

BACKENDS = ("CurvlinopsGGN", "BackPackGGN", "AsdlGGN")
DEFAULT_BACKEND = BACKENDS[0]
_STRUCTURES: dict[Structure, str] = {"Kron": "kron", "Diagonal": "diag"}
# Measured for a fit of the diagonal on 32 inputs: three times the bytes of their Jacobian on the MLP, seven
# on 3c3d, where it took 33 s. Never the fastest backend, so a large one is not worth the machine's memory.
_JACOBIAN_COPIES = 7
_MOST_BYTES = 4 * 2**30
# Its Gaussian process: the class's own default backend, then the other one that does not go through the whole batch
# once for each row of the Jacobian.
GP_BACKENDS = ("BackPackGGN", "AsdlGGN")
_GP_JACOBIAN_COPIES = 4
_MOST_GP_BYTES = 12 * 2**30


@dataclass(frozen=True)
class LaplaceTorch(Library):
    """Its default backend unless told."""

    backend: str = DEFAULT_BACKEND

    @property
    def name(self) -> str:
        return "laplace-torch" if self.backend == DEFAULT_BACKEND else f"laplace-torch-{self.backend}"

    def fit(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        laplace = importlib.import_module("laplace")
        curvature = importlib.import_module("laplace.curvature")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = laplace.Laplace(
                model,
                "classification",
                subset_of_weights="all",
                hessian_structure=_STRUCTURES[structure],
                prior_precision=PRIOR_PRECISION,
                backend=getattr(curvature, self.backend),
            )
            posterior.fit(DataLoader(TensorDataset(*data), batch_size=len(data[0])))
        return posterior

    def gp_fit(self, model: nn.Module, data: tuple[Tensor, Tensor], coupled: bool) -> Any:
        laplace = importlib.import_module("laplace")
        curvature = importlib.import_module("laplace.curvature")
        with torch.no_grad():
            classes = model(data[0][:1]).shape[1]
        weights = sum(weight.numel() for weight in model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = laplace.FunctionalLaplace(
                model,
                "classification",
                n_subset=len(data[0]),
                prior_precision=PRIOR_PRECISION,
                independent_outputs=not coupled,
                backend=getattr(curvature, self.backend),
            )
            posterior.fit(DataLoader(TensorDataset(*data), batch_size=gp_batch(weights, len(data[0]), classes)))
        return posterior

    def curvature(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        backend = getattr(importlib.import_module("laplace.curvature"), self.backend)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            measure = getattr(backend(model, "classification"), _STRUCTURES[structure])
            return measure(*data, N=len(data[0]))

    def latent_covariance(self, posterior: Any, x: Tensor) -> Tensor:
        # What its calls with pred_type="glm" compute before they integrate over the link.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, covariance = posterior._glm_predictive_distribution(x)
        return covariance

    def refuses(self, structure: Kind, weights: int, n: int, classes: int) -> str | None:
        if structure in OUTPUTS:
            copies, most, dense = _GP_JACOBIAN_COPIES, _MOST_GP_BYTES, True
        else:
            copies, most, dense = _JACOBIAN_COPIES, _MOST_BYTES, structure != "Kron" and self.backend == DEFAULT_BACKEND
        needed = 4 * weights * n * classes * copies
        if not dense or needed <= most:
            return None
        return f"not tried: its dense Jacobian would take about {needed / 2**30:.0f} GiB"


def gp_batch(weights: int, n: int, classes: int) -> int:
    """How many of n inputs its Gaussian process is to load at a time: as many as there is memory for, because it makes
    every batch's Jacobian again for each batch before it."""
    while n > 1 and 4 * weights * n * classes * _GP_JACOBIAN_COPIES > _MOST_GP_BYTES:
        n = -(-n // 2)
    return n
