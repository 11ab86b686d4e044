"""Many small networks in one call against one call each, and what refining does to their predictions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import linlap as ll
from linlap.report.datasets import banana
from linlap.report.training import falling, tanh_network

_MANY, _FEW, _DATA, _TRAIN = 100, 2, 150, 100
Data = tuple[Tensor, Tensor]


def speed(rounds: int) -> dict[str, Any]:
    """Seconds a network, and the ratio of rounds in which a few by themselves follow all at once."""
    x = torch.randn(_MANY, _DATA, 14, generator=torch.Generator().manual_seed(0))
    data = [(own, (own[:, 0] + 0.5 * own[:, 1] ** 2 > 0.3).float()) for own in x]
    models = [tanh_network((14, 50, 50, 1), seed=k) for k in range(_MANY)]
    found = {}
    for name, together, alone in _work(models, data):
        all_at_once, by_itself = [], []
        for _ in range(rounds):
            all_at_once.append(_seconds(together) / _MANY)
            by_itself.append(_seconds(lambda alone=alone: [alone(k) for k in range(_FEW)]) / _FEW)
        ratios = [one / other for one, other in zip(by_itself, all_at_once, strict=True)]
        found[name] = {
            "seconds a network, all at once": statistics.median(all_at_once),
            "seconds a network, by itself": statistics.median(by_itself),
            "times faster": statistics.median(ratios),
        }
    return {"networks": _MANY, "data": _DATA, "weights": 3351, "rounds": rounds} | found


def _work(models: list[Any], data: list[Data]) -> Iterator[tuple[str, Callable[[], Any], Callable[[int], Any]]]:
    def fit(model: Any, own: Any, structure: Any) -> Any:
        return ll.laplace(model, own, ll.Bernoulli(), structure, 1.0, progress=False)

    def refine(posterior: Any, own: Any, method: Any) -> Any:
        return ll.refine(posterior, own, method, progress=False)

    for structure in (ll.Diagonal(), ll.Full()):
        yield (
            f"laplace, {structure}",
            lambda structure=structure: fit(models, data, structure),
            lambda k, structure=structure: fit(models[k], data[k], structure),
        )
    yield (
        "laplace, Full(), ready to predict",
        lambda: [posterior.prepare() for posterior in fit(models, data, ll.Full())],
        lambda k: fit(models[k], data[k], ll.Full()).prepare(),
    )
    full = fit(models, data, ll.Full())
    for method in (ll.GlmMap(), ll.NaturalGradient(steps=25), ll.NaturalGradient("diagonal", steps=25)):
        yield (
            f"refine, {type(method).__name__}"
            + (f"({method.covariance}), 25 steps" if method != ll.GlmMap() else "()"),
            lambda method=method: refine(full, data, method),
            lambda k, method=method: refine(full[k], data[k], method),
        )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# What refining does to predictions


def predictions(splits: int) -> dict[str, Any]:
    """Mean held-out NLL and its standard error over splits of small problems, at several δ, for each method."""
    return {name: _scores(name, make, splits) for name, make in PROBLEMS.items()}


def _banana(split: int) -> tuple[Any, Data, Data]:
    given = banana(split, train=_TRAIN, test=500)
    return ll.Bernoulli(), (given.x, given.y), (given.x_test, given.y_test)


def _of_sklearn(load: str, likelihood: Any) -> Callable[[int], tuple[Any, Data, Data]]:
    def make(split: int) -> tuple[Any, Data, Data]:
        from sklearn import datasets

        x, y = getattr(datasets, load)(return_X_y=True)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(split))
        rows, held = order[:_TRAIN], order[_TRAIN:]
        inputs, targets = torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y)
        spread = inputs[rows].std(0)
        inputs = (inputs - inputs[rows].mean(0)) / torch.where(spread > 0, spread, 1.0)
        if isinstance(likelihood, ll.Gaussian):
            targets = ((targets - targets[rows].mean()) / targets[rows].std()).unsqueeze(1)
        elif isinstance(likelihood, ll.Bernoulli):
            targets = targets.float()
        return (
            likelihood,
            (inputs[rows].float(), targets[rows].to(_kind(targets))),
            (
                inputs[held].float(),
                targets[held].to(_kind(targets)),
            ),
        )

    return make


def _kind(targets: Tensor) -> torch.dtype:
    return torch.float32 if targets.is_floating_point() else torch.int64


PROBLEMS: dict[str, Callable[[int], tuple[Any, Data, Data]]] = {
    "banana": _banana,
    "breast cancer": _of_sklearn("load_breast_cancer", ll.Bernoulli()),
    "wine": _of_sklearn("load_wine", ll.Categorical()),
    "diabetes": _of_sklearn("load_diabetes", ll.Gaussian(0.7)),
}
METHODS = {
    "GlmMap": ll.GlmMap(),
    "NaturalGradient full": ll.NaturalGradient(),
    "NaturalGradient diagonal": ll.NaturalGradient("diagonal"),
}


def _scores(name: str, make: Callable[[int], Any], splits: int) -> dict[str, Any]:
    given = [make(split) for split in range(splits)]
    likelihood, (x, y), _ = given[0]
    outputs = len(set(y.tolist())) if isinstance(likelihood, ll.Categorical) else 1
    data, held = [train for _, train, _ in given], [test for _, _, test in given]
    fresh = [tanh_network((x.shape[1], 30, outputs), seed=split) for split in range(splits)]
    models = ll.train_map(fresh, data, likelihood, 1.0, steps=1000, rate=falling(1e-2, 1000), progress=False)
    laplace = ll.laplace(models, data, likelihood, ll.Full(), 1.0, progress=False)
    rows = {
        "MAP": [ll.MAP(one) for one in laplace],
        "BNN": [ll.BNN(one) for one in laplace],
        "GLM": [ll.GLM(one) for one in laplace],
    }
    for method_name, method in METHODS.items():
        rows[method_name] = [ll.GLM(one) for one in ll.refine(laplace, data, method, progress=False)]
    found = {}
    for row, predictives in rows.items():
        nll = [ll.metrics.nll(predict(x), y) for predict, (x, y) in zip(predictives, held, strict=True)]
        found[row] = {"nll": statistics.mean(nll), "error": statistics.stdev(nll) / len(nll) ** 0.5}
    return found
