"""Networks of one shape side by side: outputs, Jacobians, and outputs under sampled weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap


@dataclass(frozen=True, eq=False)
class Networks:
    """One module and the weights of M networks of its shape, `[M, P]` in the order of its parameters."""

    module: nn.Module
    theta: Tensor

    def __len__(self) -> int:
        return len(self.theta)

    def __getitem__(self, part: slice) -> Networks:
        return Networks(self.module, self.theta[part])

    def float(self) -> Networks:
        return Networks(self.module, self.theta.float())

    def double(self) -> Networks:
        return Networks(self.module, self.theta.double())

    def outputs(self, x: Tensor) -> Tensor:
        """f `[M, n, C]` of x `[M, n, d]`."""
        return vmap(self._f)(self.theta, x)

    def sampled(self, e: Tensor, x: Tensor) -> Tensor:
        """f `[S, M, n, C]` with e `[M, S, P]` added to the weights."""
        theta = self.theta.unsqueeze(1) + e
        return vmap(vmap(self._f, (0, None)), (0, 0), 1)(theta, x)

    def jacobian(self, x: Tensor) -> Tensor:
        """J `[M, n·C, P]` of x `[M, n, d]`."""
        one = jacrev(lambda theta, row: self._f(theta, row.unsqueeze(0)).squeeze(0))
        return vmap(vmap(one, (None, 0)))(self.theta, x).flatten(1, 2)

    def _f(self, theta: Tensor, x: Tensor) -> Tensor:
        sizes = {name: p.shape for name, p in self.module.named_parameters()}
        pieces = theta.split([shape.numel() for shape in sizes.values()])
        weights = {name: piece.view(shape) for (name, shape), piece in zip(sizes.items(), pieces, strict=True)}
        return functional_call(self.module, weights, (x,))


def flat(stacked: dict[str, Tensor]) -> Tensor:
    """Parameters `[M, …]` by name as one `[M, P]`."""
    return torch.cat([p.flatten(1) for p in stacked.values()], 1)


def chunks(count: int, each: float, available: float) -> Iterator[slice]:
    """Parts of `count` networks, each part within the bytes available."""
    size = max(1, min(count, int(available // each)))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
