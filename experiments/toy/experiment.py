"""The toy: six points, two weights, every posterior over them, and every predictive of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.common.cells import Arrays, Measured, Store, Tick, counting
from experiments.common.checks import Check
from experiments.common.run import Experiment, Found
from experiments.toy import claims, report
from experiments.toy.claims import GRID, HMC, of_law, of_weights
from experiments.toy.laws import INPUTS, Law
from experiments.toy.posteriors import GAUSSIAN, gaussian, grid
from experiments.toy.problem import LIKELIHOOD, NETWORK, PRECISION, Step, X, Y, inputs, outputs, trained
from linlap import GLM, hmc
from linlap.posteriors import WeightPosterior

CHAINS, WARMUP, DRAWN = 4, 500, 1500


@dataclass(frozen=True)
class Cell:
    """One posterior."""

    posterior: str

    @property
    def name(self) -> str:
        return self.posterior

    @property
    def about(self) -> dict[str, Any]:
        return asdict(self) | {"dataset": "toy", "network": NETWORK, "split": 0}


@dataclass(frozen=True)
class Toy(Experiment[Cell]):
    """Samples of the Gaussian posteriors and of HMC, and points of the grid along each weight."""

    samples: int = 100_000
    hmc_samples: int = 8000
    points: int = 401
    steps: int = 1500

    def cells(self) -> Sequence[Cell]:
        return [Cell(name) for name in (GRID, HMC, *GAUSSIAN)]

    def settings(self, cell: Cell) -> dict[str, Any]:
        return asdict(self)

    def seconds(self, cell: Cell) -> float:
        if cell.posterior == HMC:
            return 4e-3 * (self.hmc_samples + CHAINS * WARMUP)
        return 2 + 4e-5 * (self.points**2 if cell.posterior == GRID else self.samples)

    def measure(self, cell: Cell, store: Store, tick: Tick) -> Measured:
        if cell.posterior == GRID:
            tick("every weight on a grid")
            weights, shares = grid(self.points)
            law = Law.of_samples(outputs(weights, INPUTS), shares)
            side = (self.points, self.points)
            arrays = law.arrays(GRID) | {"shares": shares.reshape(side).numpy()}
            # The mass at w < 0 lies within a tenth of the line, and needs a finer grid than f does.
            return Measured(of_weights(GRID, *grid(2 * self.points - 1)) + of_law(GRID, law, law), arrays)
        truth = Law.among(store.arrays(GRID), GRID)
        if cell.posterior == HMC:
            return self._hmc(truth, tick)
        tick("training")
        posterior = gaussian(cell.posterior, trained(self.steps))
        tick("sampling")
        return self._gaussian(cell.posterior, posterior, truth)

    def _hmc(self, truth: Law, tick: Tick) -> Measured:
        """The sampler that larger networks need, where the truth is known."""
        found = hmc(
            Step(),
            (inputs(X), Y),
            LIKELIHOOD,
            PRECISION,
            samples=self.hmc_samples // CHAINS,
            chains=CHAINS,
            warmup=WARMUP,
            progress=counting(tick, "sample"),
        )
        law = Law.of_samples(outputs(found.draws, INPUTS))
        rows = of_weights(HMC, found.draws) + of_law(HMC, law, truth)
        if found.diagnostics is not None:
            said = {"r_hat": found.diagnostics.r_hat.max(), "effective_samples": found.diagnostics.effective.min()}
            rows += [{"method": HMC, "metric": name, "value": float(value)} for name, value in said.items()]
        drawn = found.draws[:: max(1, len(found.draws) // DRAWN)].numpy()
        return Measured(rows, law.arrays(HMC) | {"draws": drawn})

    def _gaussian(self, name: str, posterior: WeightPosterior, truth: Law) -> Measured:
        """Both predictives of a Gaussian posterior: BNN by sampling, GLM in closed form."""
        weights = posterior.sample(self.samples, torch.Generator().manual_seed(0))["layer.weight"].squeeze(1)
        x = inputs(INPUTS)
        laws = {
            f"bnn_{name}": Law.of_samples(outputs(weights, INPUTS)),
            f"glm_{name}": Law.of_gaussian(posterior.latent(x), GLM(posterior).moments(x).mean.squeeze(-1)),
        }
        rows = of_weights(name, weights)
        covariance = posterior.precision.inverse_sqrt(torch.eye(2, dtype=torch.float64))
        arrays: Arrays = {"mean": posterior.mean.numpy(), "covariance": (covariance.mT @ covariance).numpy()}
        for predictive, law in laws.items():
            rows += of_law(predictive, law, truth)
            arrays |= law.arrays(predictive)
        return Measured(rows, arrays)

    def checks(self, found: Found) -> list[Check]:
        return claims.checks(found)

    def report(self, found: Found, out: Path) -> None:
        report.write(found, self.checks(found), out)


def make(quick: bool, data: Path | None) -> Toy:
    """It makes its own data, whatever folder is named."""
    return Toy(samples=5000, hmc_samples=2000, points=121) if quick else Toy()
