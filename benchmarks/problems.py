"""What is measured: a network, its inputs and the sizes of batch and fit, all synthetic and seeded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks import networks
from benchmarks.peers.base import OUTPUTS, Kind


@dataclass(frozen=True)
class Sizes:
    """Numbers of inputs. batch: of a latent covariance; fit: that its posterior is fitted on (few in weight space,
    where the covariance's cost does not depend on them); fit_timed: of a timed fit, None to time none."""

    batch: int
    fit: int = 16
    fit_timed: int | None = None


def _gp(batch: int, fit: int) -> Sizes:
    return Sizes(batch, fit, fit_timed=fit)


@dataclass(frozen=True)
class Problem:
    """A network of `classes` outputs and the numbers of inputs each measurement uses.

    weights, gp: sizes for posteriors in weight space and for Gaussian processes, None to measure none; checked:
    inputs and fitting inputs of the float64 comparison; tiny: small enough for the dense oracle.
    """

    name: str
    title: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    weights: Sizes | None
    gp: Sizes | None = None
    checked: int = 4
    tiny: bool = False

    def sizes(self, structure: Kind) -> Sizes | None:
        """Those for a posterior of this structure, or for a Gaussian process of such outputs."""
        return self.gp if structure in OUTPUTS else self.weights

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The network in evaluation mode; the same weights at each call, whatever the dtype."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build()
        return model.to(dtype).eval()

    def inputs(self, n: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
        """Standard normal inputs [n, *input_shape]; the same values in each dtype."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(n, *self.input_shape, generator=generator).to(dtype)

    def data(self, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Inputs [n, ...] and integer labels [n] to fit on."""
        generator = torch.Generator().manual_seed(2)
        return self.inputs(n, dtype, seed=3), torch.randint(self.classes, (n,), generator=generator)


def _transformer() -> nn.Module:
    return networks.Transformer(48, tokens=64, width=128, heads=4, hidden=512, blocks=4, classes=10)


def _tiny_transformer() -> nn.Module:
    return networks.Transformer(3, tokens=4, width=6, heads=2, hidden=8, blocks=1, classes=3)


_TINY = Sizes(batch=4)

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(
            "mlp",
            "MLP 784-1024-512-256-128-10 tanh",
            lambda: networks.mlp([784, 1024, 512, 256, 128, 10]),
            *((784,), 10, Sizes(32, fit_timed=256)),
        ),
        Problem(
            "narrow-mlp",
            "MLP 784-256-128-10 tanh",
            lambda: networks.mlp([784, 256, 128, 10]),
            *((784,), 10, None, _gp(64, fit=256)),
        ),
        Problem(
            "3c3d",
            "3c3d on 3x32x32",
            networks.c3d3,
            *((3, 32, 32), 10, Sizes(16, fit_timed=32), _gp(64, fit=256)),
        ),
        Problem(
            "allcnn",
            "AllCNN on 3x32x32",
            networks.allcnn,
            *((3, 32, 32), 10, Sizes(4, fit=4, fit_timed=16)),
            checked=2,
        ),
        Problem(
            "transformer",
            "4-block transformer encoder, width 128, 64 tokens",
            _transformer,
            *((64, 48), 10, Sizes(8, fit=8)),
        ),
        Problem("small-mlp", "MLP 36-50-50-6 tanh", lambda: networks.mlp([36, 50, 50, 6]), (36,), 6, Sizes(128)),
        Problem("tiny-mlp", "MLP 5-4-3 tanh", lambda: networks.mlp([5, 4, 3]), (5,), 3, _TINY, _TINY, tiny=True),
        Problem("tiny-deep-mlp", "MLP 5-4-4-3", lambda: networks.mlp([5, 4, 4, 3]), (5,), 3, None, _TINY, tiny=True),
        Problem("tiny-conv", "small convolutions", networks.tiny_convnet, (2, 6, 6), 3, _TINY, _TINY, tiny=True),
        Problem("tiny-transformer", "one narrow block", _tiny_transformer, (4, 3), 3, _TINY, _TINY, tiny=True),
    )
}
