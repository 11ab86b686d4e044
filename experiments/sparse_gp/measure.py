"""One cell: train a network, make every process on it, score each as it is and after a choice on validation data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import process_time
from typing import Any, Literal

import torch
from torch import Tensor
from torch import distributions as td

import linlap as ll
from experiments.sparse_gp.config import Cell, Config
from experiments.sparse_gp.problems import Trained, trained
from linlap import metrics
from linlap.posteriors import FunctionPosterior, WeightPosterior

Outputs = Literal["independent", "coupled"]
Posterior = FunctionPosterior | WeightPosterior
ONE, PRIOR, WIDE, TEMPERATURE = "one", "prior", "prior, wider grid", "temperature"
MAP, EVERYTHING, FULL, SUBSET, SPARSE = "MAP", "Everything", "Full", "Subset", "Sparse"
FULL_UP_TO = 4000  # weights: the covariance of more takes minutes on one thread
LIKELIHOOD = ll.Categorical()


@dataclass(frozen=True)
class Method:
    """One posterior: its kind, M where it has one, and its factor: kept at one, or chosen in several ways."""

    name: str
    inducing: int | None
    outputs: Outputs | None
    choices: tuple[str, ...] = (ONE, PRIOR, WIDE, TEMPERATURE)

    @property
    def said(self) -> str:
        return " ".join(str(part) for part in (self.name, self.inducing, self.outputs) if part is not None)


def methods(cell: Cell, config: Config, weights: int) -> list[Method]:
    """Exact ones first, which the others are compared with.

    Coupled outputs have ten times as many rows: they are left out where that takes minutes, and so are 22 priors each.
    """
    pairs = [(name, m) for m in config.sizes for name in (SUBSET, SPARSE)]
    independent = [Method(EVERYTHING, None, "independent"), *(Method(name, m, "independent") for name, m in pairs)]
    if cell.precision != config.precisions[0]:
        return independent
    few = [(name, m) for name, m in pairs if m <= config.coupled_up_to]
    full = [(FULL, None)] if weights <= FULL_UP_TO else []
    return independent + [Method(name, m, "coupled", (ONE, TEMPERATURE)) for name, m in full + few]


def measure(cell: Cell, config: Config, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Rows {method, inducing, outputs, factor_choice, metric, value} of a cell. `tick` is told what comes next."""
    tick("training")
    problem = trained(cell, config)
    rows = _map_rows(problem)
    exact: dict[str | None, Tensor] = {}
    for method in methods(cell, config, problem.weights):
        tick(method.said)
        start = process_time()
        posterior = _posterior(method, problem, cell)
        seconds = process_time() - start
        found = list(_Case(posterior, problem, cell.precision, config).scores(method.choices))
        variance = posterior.latent(problem.test[0], diagonal=True).variance
        found.append((ONE, "fit_seconds", seconds))
        if method.inducing is None:
            exact[method.outputs] = variance
        elif method.outputs in exact:
            ratio = (variance / exact[method.outputs]).log()
            found += [(ONE, "log_variance_error", float(ratio.abs().mean()))]
            found += [(ONE, "log_variance_bias", float(ratio.mean()))]
        rows += [_row(method, *one) for one in found]
    return rows


def _row(method: Method, choice: str, metric: str, value: float) -> dict[str, Any]:
    return {
        "method": method.name,
        "inducing": method.inducing,
        "outputs": method.outputs,
        "factor_choice": choice,
        "metric": metric,
        "value": value,
    }


def _map_rows(problem: Trained) -> list[dict[str, Any]]:
    """The network alone; its scores on validation data say which δ is sensible."""
    method = Method(MAP, None, None, (ONE,))
    rows = []
    for part, (x, y) in (("", problem.test), ("valid_", problem.valid)):
        with torch.no_grad():
            p = LIKELIHOOD.observe(problem.model(x))
        rows += [_row(method, ONE, part + name, value) for name, value in _scores(p, y)]
    return rows


def _scores(p: td.Distribution, y: Tensor) -> list[tuple[str, float]]:
    return [("nll", metrics.nll(p, y)), ("ece", metrics.ece(p, y)), ("accuracy", metrics.accuracy(p, y))]


def _posterior(method: Method, problem: Trained, cell: Cell) -> Posterior:
    model, data, prior = problem.model, problem.train, ll.Prior(cell.precision)
    if method.name == FULL:
        return ll.laplace(model, data, LIKELIHOOD, ll.Full(), prior, progress=False).prepare()
    if method.inducing is None:
        inducing: Any = ll.Everything()
    else:
        inducing = (ll.Subset if method.name == SUBSET else ll.Sparse)(method.inducing, cell.seed)
    return ll.gaussian_process(model, data, LIKELIHOOD, inducing, method.outputs, prior, progress=False)


@dataclass(frozen=True)
class _Case:
    """A posterior scored on test data: as it is, and with its factor chosen on validation data."""

    posterior: Posterior
    problem: Trained
    precision: float
    config: Config

    def scores(self, choices: tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
        """(choice, metric, value); a chosen factor is a metric as well."""
        for choice in choices:
            factor = 1.0 if choice == ONE else self._chosen(choice)
            posterior = self.posterior.with_prior(self._prior(choice, factor))
            p = ll.GLM(posterior)(self.problem.test[0])
            yield from ((choice, name, value) for name, value in _scores(p, self.problem.test[1]))
            if choice != ONE:
                yield choice, "factor", factor

    def _prior(self, choice: str, factor: float) -> ll.Prior:
        """The factor on the precision, or as an inverse temperature."""
        if choice in (PRIOR, WIDE):
            return ll.Prior(self.precision * factor)
        return ll.Prior(self.precision, 1 / factor)

    def _chosen(self, choice: str) -> float:
        """The factor of least NLL on validation data; of equal ones the smallest, which trusts the posterior most."""
        factors = self.config.factors + (self.config.further_factors if choice == WIDE else ())
        if choice == TEMPERATURE:
            tried: dict[str, Any] = {"temperatures": [1 / factor for factor in factors]}
        else:
            tried = {"grid": [self.precision * factor for factor in factors]}
        integrator = ll.MonteCarlo(self.config.draws)
        validation = ll.Validation(self.problem.valid, **tried, integrator=integrator, progress=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*lies at the edge")  # the wider grid is there to show that
            scores = validation.minimise(self.posterior).scores.tolist()
        return factors[scores.index(min(scores))]
