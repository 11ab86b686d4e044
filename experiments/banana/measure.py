"""One cell: train or fit, choose δ on validation data, score on the rest, and look at the plane around the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import linlap as ll
from experiments.banana.config import HMC, LAPLACE, MAP, MFVI, Cell, Config
from experiments.banana.data import Pair, Points
from experiments.common.cells import Arrays, Measured, Store, Tick, counting
from linlap import metrics
from linlap.plotting import Plane, on_plane
from linlap.posteriors import WeightPosterior
from linlap.predictives import BNN, GLM
from linlap.report.training import tanh_network

LIKELIHOOD = ll.Bernoulli()
NEAR = 0.5  # at most so far from a training point; far is three times that and more
Predictive = Any


@dataclass(frozen=True, eq=False)
class Problem:
    """A cell with its data, and what is asked of every predictive."""

    cell: Cell
    config: Config
    train: Pair
    valid: Pair
    test: Pair

    @classmethod
    def of(cls, cell: Cell, config: Config, points: Points) -> Problem:
        return cls(cell, config, *points.split(cell.split, config.size))

    def networks(self) -> list[nn.Module]:
        """One for each δ, before training."""
        return [tanh_network(self.cell.sizes, self.cell.split) for _ in self.config.grid(self.cell)]

    def valid_nll(self, predictive: Predictive) -> float:
        return metrics.nll(predictive(self.valid[0]), self.valid[1])

    def judged(self, name: str, predictive: Predictive) -> Measured:
        """Rows of a predictive's scores, and on the first split its plane."""
        x, y = self.test
        p = predictive(x)
        found = {"nll": metrics.nll(p, y), "accuracy": metrics.accuracy(p, y), "ece": metrics.ece(p, y)}
        arrays: Arrays = {}
        if self.cell.split == 0:
            plane = on_plane(predictive, x, limit=self.config.limit, points=self.config.points)
            found |= dict(around(plane, self.train[0]))
            arrays[name] = torch.stack([plane.mean, plane.aleatoric, plane.epistemic]).half().numpy()
        return Measured([_row(name, metric, value) for metric, value in found.items()], arrays)


def _row(method: str, metric: str, value: float) -> dict[str, Any]:
    return {"method": method, "metric": metric, "value": value}


def around(plane: Plane, x: Tensor) -> Iterator[tuple[str, float]]:
    """Mean deviation and epistemic variance near training points, and far from all."""
    line = torch.linspace(-plane.limit, plane.limit, len(plane.mean))
    places = torch.cartesian_prod(line, line).flip(-1)
    apart = torch.cdist(places, x.float()).min(-1).values.reshape(plane.mean.shape)
    for name, where in (("near", apart <= NEAR), ("far", apart >= 3 * NEAR)):
        yield f"{name}_deviation", float(plane.deviation[where].mean())
        yield f"{name}_epistemic", float(plane.epistemic[where].mean())


def measure(cell: Cell, config: Config, points: Points, store: Store, tick: Tick) -> Measured:
    problem = Problem.of(cell, config, points)
    if cell.group == MAP:
        return _map(problem, tick)
    if cell.group == MFVI:
        return _mfvi(problem, tick)
    model, precision = trained(problem, store)
    if cell.group == HMC:
        return _hmc(problem, model, precision, tick)
    judge = _laplace if cell.group == LAPLACE else _refined
    return _joined([problem.judged(name, predictive) for name, predictive in judge(problem, model, precision, tick)])


def _joined(parts: Sequence[Measured]) -> Measured:
    arrays: Arrays = {}
    for part in parts:
        arrays |= part.arrays
    return Measured([row for part in parts for row in part.rows], arrays)


def _map(problem: Problem, tick: Tick) -> Measured:
    """The network under the δ of least NLL on validation data; its weights are kept."""
    config, grid = problem.config, problem.config.grid(problem.cell)
    data, rate, step = [problem.train] * len(grid), config.rate_at(config.rate), counting(tick, "training: step")
    models = ll.train_map(problem.networks(), data, LIKELIHOOD, grid, steps=config.steps, rate=rate, progress=step)
    posteriors = [_fit(model, problem, ll.Diagonal(), d) for model, d in zip(models, grid, strict=True)]
    place = int(np.argmin([problem.valid_nll(ll.MAP(posterior)) for posterior in posteriors]))
    found = problem.judged("map", ll.MAP(posteriors[place]))
    weights = parameters_to_vector(models[place].parameters()).detach().numpy()
    kept = {"weights": weights, "precision": np.asarray(grid[place])}
    return Measured([*found.rows, _row("map", "precision", grid[place])], found.arrays | kept)


def trained(problem: Problem, store: Store) -> tuple[nn.Module, float]:
    """The network that the cell of the MAP found, and its δ."""
    cell = problem.cell
    kept = store.arrays(Cell(cell.dataset, cell.layers, MAP, cell.split, cell.width).name)
    model = tanh_network(cell.sizes, cell.split)
    vector_to_parameters(torch.as_tensor(kept["weights"]), model.parameters())
    return model, float(kept["precision"])


def _fit(model: nn.Module, problem: Problem, structure: Any, precision: float) -> WeightPosterior:
    return ll.laplace(model, problem.train, LIKELIHOOD, structure, precision, progress=False)


def full(problem: Problem) -> Any:
    """All covariances between weights; where data are fewer than weights, by the few directions that they inform."""
    few = len(problem.train[0])
    return ll.Full() if problem.cell.weights <= few else ll.LowRank(few)


def _laplace(problem: Problem, model: nn.Module, precision: float, tick: Tick) -> Iterator[tuple[str, Predictive]]:
    for kind, structure in (("full", full(problem)), ("diag", ll.Diagonal())):
        tick(f"Laplace, {kind}")
        posterior = _fit(model, problem, structure, precision)
        yield f"glm_{kind}", GLM(posterior)
        tick(f"BNN, {kind}")
        yield f"bnn_{kind}", BNN(posterior, problem.config.samples)


def _refined(problem: Problem, model: nn.Module, precision: float, tick: Tick) -> Iterator[tuple[str, Predictive]]:
    steps = problem.config.refinements
    for kind, structure in (("full", full(problem)), ("diag", ll.Diagonal())):
        tick(f"refining, {kind}")
        method = ll.NaturalGradient("full" if kind == "full" else "diagonal", steps=steps)
        posterior = _fit(model, problem, structure, precision)
        yield f"glm_refine_{kind}", GLM(ll.refine(posterior, problem.train, method, progress=False))


def _mfvi(problem: Problem, tick: Tick) -> Measured:
    config, grid = problem.config, problem.config.grid(problem.cell)
    data, rate, step = [problem.train] * len(grid), config.rate_at(config.rate_of_mfvi), counting(tick, "step")
    found = ll.mfvi(problem.networks(), data, LIKELIHOOD, grid, steps=config.steps, rate=rate, progress=step)
    predictives = [BNN(posterior, config.samples) for posterior in found]
    place = int(np.argmin([problem.valid_nll(BNN(posterior, 100)) for posterior in found]))
    judged = problem.judged("mfvi", predictives[place])
    return Measured([*judged.rows, _row("mfvi", "precision", grid[place])], judged.arrays)


def _hmc(problem: Problem, model: nn.Module, precision: float, tick: Tick) -> Measured:
    """The true posterior under the δ of the MAP, as far as chains find it."""
    config = problem.config
    found = ll.hmc(
        model,
        problem.train,
        LIKELIHOOD,
        precision,
        samples=config.hmc_samples,
        chains=config.hmc_chains,
        warmup=config.hmc_warmup,
        progress=counting(tick, "sample"),
    )
    judged = problem.judged("hmc", BNN(found))
    said = found.diagnostics
    assert said is not None
    trust = {
        "r_hat": float(said.r_hat.max()),
        "r_hat_outputs": float(said.r_hat_outputs.max()),
        "effective_outputs": float(said.effective_outputs.min()),
        "divergences": float(said.divergences),
    }
    return Measured([*judged.rows, *(_row("hmc", name, value) for name, value in trust.items())], judged.arrays)
