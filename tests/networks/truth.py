"""What the oracle says of a network, and posteriors of the library for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

import linlap as ll
from linlap.curvature import Structure
from linlap.likelihoods import Likelihood
from linlap.posteriors import WeightPosterior
from tests import reference
from tests.networks.case import NetworkCase
from tests.reference import Precision


@dataclass(frozen=True, eq=False)
class Truth:
    """A network with data and a likelihood, linearised by the oracle."""

    case: NetworkCase
    x: Any
    y: Tensor
    names: list[str]
    f: Tensor
    J: Tensor
    lam: Tensor
    law: Any
    """The case of its likelihood."""

    def model(self) -> nn.Module:
        return self.case.build()

    @property
    def likelihood(self) -> Likelihood:
        return self.law.library(**self.options)

    @property
    def options(self) -> dict[str, Any]:
        return self.law.options(self.case.outputs)

    @cached_property
    def H(self) -> Tensor:
        return reference.full_ggn(self.J, self.lam)

    @cached_property
    def theta(self) -> Tensor:
        return reference.theta(self.model(), self.names)

    @cached_property
    def log_likelihood(self) -> Tensor:
        return reference.log_prob(self.law.oracle, self.y, self.f, **self.options).sum()

    def prior(self, precision: Precision) -> Tensor:
        return reference.prior_vector(self.model(), self.names, precision)

    def fit(self, structure: Structure, prior: Any = 1.0, data: Any = None, **options: Any) -> WeightPosterior:
        """The library's posterior, of all the data unless others are given."""
        data = (self.x, self.y) if data is None else data
        return ll.laplace(self.model(), data, self.likelihood, structure, prior, progress=False, **options)
