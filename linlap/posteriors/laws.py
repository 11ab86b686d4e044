"""What a posterior says of outputs under several priors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linlap.errors import InputError
from linlap.network import Network
from linlap.network.inputs import count
from linlap.network.memory import require
from linlap.prior import Prior
from linlap.types import Gaussian, Inputs


@dataclass(frozen=True, eq=False)
class Laws:
    """The laws of f(x) under several priors. Each batch is linearised once, whatever their number.

    `parts` cuts inputs to what fits in memory; `at` gives for such a part means `[n, C]` and, for each prior,
    covariances at temperature 1, `[m, n, C, C]`, or where diagonal variances `[m, n, C]`.
    """

    priors: tuple[Prior, ...]
    network: Network
    parts: Callable[[Inputs, int | None], Iterator[Inputs]]
    at: Callable[[Inputs, bool], tuple[Tensor, Tensor]]

    def latents(self, x: Inputs, *, diagonal: bool = False, memory: int | None = None) -> list[Gaussian]:
        """The law under each prior, as `posterior.latent` gives it."""
        self.network.prepare(x)
        m, n, c = len(self.priors), count(x), self.network.outputs_per_input
        size = 3 * m * n * c * (1 if diagonal else c) * torch.finfo(self.network.dtype).bits // 8
        instead = "Pass diagonal=True, fewer priors, or fewer inputs at a time."
        require(size, self.network.device, f"covariances of {n} inputs under {m} priors", instead)
        means, covs = zip(*[self.at(part, diagonal) for part in self.parts(x, memory)], strict=True)
        mean, cov = torch.cat(means), torch.cat(covs, 1)
        return [Gaussian(mean, of_one * float(p.temperature)) for p, of_one in zip(self.priors, cov, strict=True)]


def as_priors(priors: Any) -> tuple[Prior, ...]:
    """Priors from themselves, or from precisions."""
    if isinstance(priors, Prior | float | int) or not isinstance(priors, Iterable):
        raise InputError(f"priors={priors!r}; pass several, as a list of ll.Prior objects or of precisions.")
    found = tuple(prior if isinstance(prior, Prior) else Prior(prior) for prior in priors)
    if not found:
        raise InputError("priors is empty; pass at least one ll.Prior or precision.")
    return found
