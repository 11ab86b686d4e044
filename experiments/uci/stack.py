"""Networks of one shape side by side: outputs, Jacobians, and outputs under sampled weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap


@dataclass(frozen=True, eq=False)
class Layer:
    """A dense layer's inputs a `[M, n, i]`, and derivatives g `[M, n, C, o]` of f in its outputs: J = g ⊗ (a, 1)."""

    a: Tensor
    g: Tensor

    def rows(self) -> tuple[Tensor, Tensor]:
        """J `[M, n, C, …]` of the weights, and of the biases."""
        return (self.g.unsqueeze(-1) * self.a[..., None, None, :]).flatten(-2), self.g


@dataclass(frozen=True, eq=False)
class Networks:
    """One module, of dense layers with tanh between them, and M networks' weights `[M, P]` in its parameters' order."""

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

    def layers(self, x: Tensor) -> list[Layer]:
        """The Jacobian's dense layers at x `[M, n, d]`, the first one first."""
        weights = [self._pieces(self.theta)[name] for name, p in self.module.named_parameters() if p.ndim == 2]
        biases = [self._pieces(self.theta)[name] for name, p in self.module.named_parameters() if p.ndim == 1]
        seen = [x]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            seen.append((seen[-1] @ weight.mT + bias.unsqueeze(-2)).tanh())
        g = torch.eye(biases[-1].shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape[:2], -1, -1)
        found = [Layer(seen[-1], g)]
        for a, weight in zip(reversed(seen[:-1]), reversed(weights[1:]), strict=True):
            g = (g @ weight.unsqueeze(1)) * (1 - seen[-len(found)].square()).unsqueeze(-2)
            found.append(Layer(a, g))
        return found[::-1]

    def jacobian(self, x: Tensor) -> Tensor:
        """J `[M, n·C, P]` of x `[M, n, d]`."""
        return torch.cat([rows for layer in self.layers(x) for rows in layer.rows()], -1).flatten(1, 2)

    def _f(self, theta: Tensor, x: Tensor) -> Tensor:
        return functional_call(self.module, self._pieces(theta), (x,))

    def _pieces(self, theta: Tensor) -> dict[str, Tensor]:
        """Weights `[…, P]` by parameter name."""
        sizes = {name: p.shape for name, p in self.module.named_parameters()}
        pieces = theta.split([shape.numel() for shape in sizes.values()], -1)
        leading = theta.shape[:-1]
        return {name: piece.view(*leading, *shape) for (name, shape), piece in zip(sizes.items(), pieces, strict=True)}


def flat(stacked: dict[str, Tensor]) -> Tensor:
    """Parameters `[M, …]` by name as one `[M, P]`."""
    return torch.cat([p.flatten(1) for p in stacked.values()], 1)


def chunks(count: int, each: float, available: float) -> Iterator[slice]:
    """Parts of `count` networks, each part within the bytes available."""
    size = max(1, min(count, int(available // each)))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
