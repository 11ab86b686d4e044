"""Values that every layer of the library passes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

Params = dict[str, Tensor]
Inputs = Any
"""A tensor, a tuple of tensors, or a dict of tensors; every tensor has the inputs on its first axis."""


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian over the outputs f(x) of n inputs.

    `cov` holds variances `[n, c]`, covariances of the outputs of each input `[n, c, c]`,
    or covariances over inputs as well `[n, c, n, c]`.
    """

    mean: Tensor
    cov: Tensor

    @property
    def is_diagonal(self) -> bool:
        return self.cov.ndim == 2

    @property
    def is_joint(self) -> bool:
        return self.cov.ndim == 4

    @property
    def variance(self) -> Tensor:
        """Marginal variances `[n, c]`."""
        if self.is_diagonal:
            return self.cov
        return self.marginals().cov.diagonal(dim1=-2, dim2=-1)

    def marginals(self) -> Gaussian:
        """The same law without the covariances between inputs."""
        if not self.is_joint:
            return self
        return Gaussian(self.mean, self.cov.diagonal(dim1=0, dim2=2).permute(2, 0, 1))
