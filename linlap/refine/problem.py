"""The linear model with its data in memory: small enough to hold every Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linlap.data import Batches
from linlap.errors import InputError
from linlap.likelihoods import Likelihood
from linlap.network.inputs import cat, count, take
from linlap.network.memory import require
from linlap.network.stack import side_by_side
from linlap.posteriors import WeightPosterior


@dataclass(frozen=True, eq=False)
class Problem:
    """f_lin(x_n, θ) = f_n + J_n (θ − θ*) with θ ~ N(0, diag(d)⁻¹), in float64.

    Any axes before those named are problems side by side: `J` `[N·C, P]`, `f` `[N, C]`, `y` `[N, …]`, `theta`, `d` and
    `start` `[P]`. `start` is where refinement begins.
    """

    likelihood: Likelihood
    J: Tensor
    f: Tensor
    y: Tensor
    theta: Tensor
    d: Tensor
    start: Tensor

    @property
    def size(self) -> int:
        """P."""
        return self.J.shape[-1]

    @property
    def rows(self) -> int:
        """N·C."""
        return self.J.shape[-2]

    def log_likelihood(self, f: Tensor) -> Tensor:
        """Σ log p(y | f) for each problem."""
        return self._each(lambda y, rows: self.likelihood.log_prob(y, rows), f).sum(-1)

    def residual(self, f: Tensor) -> Tensor:
        """∂ log p(y | f) / ∂f, as f."""
        return self._each(self.likelihood.residual, f)

    def blocks(self, f: Tensor) -> Tensor:
        """Λ `[N, C, C]`."""
        root = self.likelihood.hessian_sqrt(f)
        return root @ root.mT

    def _each(self, change: Callable[[Tensor, Tensor], Tensor], f: Tensor) -> Tensor:
        """What a likelihood says of each datum; it takes no axes before n beside labels."""
        axes = f.ndim - 1
        done = change(self.y.flatten(0, axes - 1), f.flatten(0, axes - 1))
        return done.reshape(*f.shape[:-1], *done.shape[1:])

    def split(self) -> list[Problem]:
        """The problems one by one."""
        parts = zip(self.J, self.f, self.y, self.theta, self.d, self.start, strict=True)
        return [Problem(self.likelihood, *part) for part in parts]


def bytes_of(posterior: WeightPosterior, outputs: int) -> int:
    """What the Jacobians of all data take."""
    return 8 * posterior.curvature.totals.count * outputs * posterior.network.size


def problem_of(posterior: WeightPosterior, batches: Batches) -> Problem:
    """A posterior's linear model at all of its data."""
    network, likelihood = posterior.network, posterior.likelihood
    rows: list[Tensor] = []
    fs: list[Tensor] = []
    ys: list[Tensor] = []
    for x, y in batches:
        f = network.outputs(x)
        likelihood.check_outputs(f.shape[1])
        if not rows:
            needed = 2 * bytes_of(posterior, f.shape[1])
            require(needed, network.device, "the Jacobians of all data", 'Pass batch_size=…, or covariance="kron".')
        ys.append(likelihood.prepare(y, f.double()))
        fs.append(f.double())
        size = network.batch_for(x, dense=True)
        for start in range(0, count(x), size):
            lin = network.linearize(take(x, start, start + size), once=True)
            rows.append(lin.jacobian.dense().flatten(0, 1).double())
    check_number(posterior, sum(map(len, fs)))
    theta = network.vector().double()
    return Problem(
        likelihood, torch.cat(rows), torch.cat(fs), torch.cat(ys), theta, prior_vector(posterior), posterior.mean
    )


def problems_of(posteriors: Sequence[WeightPosterior], batches: Sequence[Batches]) -> Problem:
    """Linear models of networks of one outline, each at its own data in tensors of one form, side by side."""
    pairs = [list(zip(*each, strict=True)) for each in batches]
    likelihood = posteriors[0].likelihood
    f, j = side_by_side([posterior.network for posterior in posteriors], [cat(x) for x, _ in pairs])
    likelihood.check_outputs(f.shape[-1])
    f = f.double()
    ys = [likelihood.prepare(torch.cat(y), own) for (_, y), own in zip(pairs, f, strict=True)]
    for posterior in posteriors:
        check_number(posterior, f.shape[1])
    vectors = [
        (posterior.network.vector().double(), prior_vector(posterior), posterior.mean) for posterior in posteriors
    ]
    theta, d, start = (torch.stack(each) for each in zip(*vectors, strict=True))
    return Problem(likelihood, j.double().flatten(1, 2), f, torch.stack(ys), theta, d, start)


def check_number(posterior: WeightPosterior, found: int) -> None:
    """That these can be the data the posterior was fitted on."""
    fitted = posterior.curvature.totals.count
    if found != fitted:
        raise InputError(
            f"the posterior was fitted on {fitted} data and these are {found}; pass the same training data, or fit "
            "on these first with ll.laplace."
        )


def prior_vector(posterior: WeightPosterior) -> Tensor:
    """The prior's precision of each weight `[P]`."""
    network = posterior.network
    by_parameter = posterior.prior.by_parameter(network.shapes, network.device)
    return torch.cat([by_parameter[name].detach().expand(shape.numel()) for name, shape in network.shapes.items()])
