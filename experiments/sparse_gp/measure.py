"""One cell: train a network, make every process on it, score each as it is and after a choice on validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import process_time
from typing import Any, Literal

import torch
from torch import Tensor
from torch import distributions as td

import linlap as ll
from experiments.sparse_gp.config import Cell, Config
from experiments.sparse_gp.problems import Trained, trained
from linlap import metrics
from linlap.integrators import default_for
from linlap.posteriors import FunctionPosterior, WeightPosterior
from linlap.types import Gaussian

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
        case = _Case(posterior, problem, cell.precision, config)
        found = list(case.scores(method.choices))
        variance = case.test.variance
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
class _Known:
    """The law of f at inputs where it is known already, for `ll.GLM`, which asks a posterior for it."""

    likelihood: ll.Categorical
    law: Gaussian

    def latent(self, x: Any, *, diagonal: bool = False) -> Gaussian:
        return self.law


class _Case:
    """A posterior with its laws of f at test and validation inputs, made once for all temperatures."""

    def __init__(self, posterior: Posterior, problem: Trained, precision: float, config: Config) -> None:
        self.posterior, self.problem, self.precision, self.config = posterior, problem, precision, config
        self.test = posterior.latent(problem.test[0])
        self.choosing = replace(default_for(LIKELIHOOD), samples=config.draws)
        self.under_priors: dict[float, float] = {}

    def scores(self, choices: tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
        """(choice, metric, value); a chosen factor is a metric as well."""
        for choice in choices:
            factor = 1.0 if choice == ONE else self._chosen(choice)
            p = ll.GLM(_Known(LIKELIHOOD, self._law(choice, factor)))(self.problem.test[0])
            yield from ((choice, name, value) for name, value in _scores(p, self.problem.test[1]))
            if choice != ONE:
                yield choice, "factor", factor

    def _law(self, choice: str, factor: float) -> Gaussian:
        if choice in (PRIOR, WIDE):
            return self._under_prior(self.problem.test[0], factor)
        return Gaussian(self.test.mean, self.test.cov / factor)

    def _under_prior(self, x: Tensor, factor: float) -> Gaussian:
        return self.posterior.with_prior(ll.Prior(self.precision * factor)).latent(x)

    def _chosen(self, choice: str) -> float:
        """The factor of least NLL on validation data; of equal ones the smallest, which trusts the posterior most."""
        x = self.problem.valid[0]
        if choice == TEMPERATURE:
            once = self.posterior.latent(x)
            found = {factor: self._nll(Gaussian(once.mean, once.cov / factor)) for factor in self.config.factors}
        else:
            factors = self.config.factors + (self.config.further_factors if choice == WIDE else ())
            for factor in factors:
                if factor not in self.under_priors:
                    self.under_priors[factor] = self._nll(self._under_prior(x, factor))
            found = {factor: self.under_priors[factor] for factor in factors}
        return min(found, key=lambda factor: found[factor])

    def _nll(self, law: Gaussian) -> float:
        return metrics.nll(self.choosing.predict(LIKELIHOOD, law), self.problem.valid[1])
