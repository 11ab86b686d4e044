"""laplace-torch 0.3 with each of its curvature backends."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.base import PRIOR_PRECISION, Library, Structure

BACKENDS = ("CurvlinopsGGN", "BackPackGGN", "AsdlGGN")
DEFAULT_BACKEND = BACKENDS[0]
_STRUCTURES: dict[Structure, str] = {"Kron": "kron", "Diagonal": "diag"}
# Measured for a fit of the diagonal on 32 inputs: three times the bytes of their Jacobian on the MLP, seven
# on 3c3d, where it took 33 s. Never the fastest backend, so a large one is not worth the machine's memory.
_JACOBIAN_COPIES = 7
_MOST_BYTES = 4 * 2**30


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

    def refuses(self, structure: Structure, weights: int, n: int, classes: int) -> str | None:
        needed = 4 * weights * n * classes * _JACOBIAN_COPIES
        if structure == "Kron" or self.backend != DEFAULT_BACKEND or needed <= _MOST_BYTES:
            return None
        return f"not tried: its dense Jacobian would take about {needed / 2**30:.0f} GiB"
