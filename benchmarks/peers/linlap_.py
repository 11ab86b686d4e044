"""linlap, through its public names only."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from benchmarks.peers.base import PRIOR_PRECISION, Library, Structure


class Linlap(Library):
    """The library of this repository, imported from the checkout."""

    @property
    def name(self) -> str:
        return "linlap"

    def fit(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        # Decomposed on first use otherwise; the peers decompose within their fit.
        return self.curvature(model, data, structure).prepare()

    def gp_fit(self, model: nn.Module, data: tuple[Tensor, Tensor], coupled: bool) -> Any:
        ll = importlib.import_module("linlap")
        return ll.gaussian_process(
            model,
            data,
            ll.Categorical(),
            inducing=ll.Everything(),
            outputs="coupled" if coupled else "independent",
            prior=ll.Prior(PRIOR_PRECISION),
            progress=False,
        )

    def curvature(self, model: nn.Module, data: tuple[Tensor, Tensor], structure: Structure) -> Any:
        ll = importlib.import_module("linlap")
        structures = {"Kron": ll.Kron, "Diagonal": ll.Diagonal}
        return ll.laplace(
            model,
            data,
            ll.Categorical(),
            structure=structures[structure](),
            prior=ll.Prior(PRIOR_PRECISION),
            progress=False,
        )

    def latent_covariance(self, posterior: Any, x: Tensor) -> Tensor:
        return posterior.latent(x).cov
