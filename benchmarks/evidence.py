"""`python -m benchmarks.evidence`: choosing the prior by the evidence, against laplace-torch's 100 steps of Adam.

A network of 36 inputs, 2×50 tanh units and 6 classes: 4706 weights. Both libraries fit the same float64 network to the
same data; then, interleaved in one process, each chooses one prior precision. `Full` takes laplace-torch minutes: a
few of its steps are timed and scaled to 100, which the record says.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import linlap as ll
from benchmarks import environment
from benchmarks.process import say
from benchmarks.run import RESULTS
from linlap.curvature import Structure
from linlap.report.training import falling, tanh_network

STEPS, FASTER = 100, 100.0
STRUCTURES: dict[str, tuple[Structure, str, int]] = {
    "Full": (ll.Full(), "full", 3),
    "Kron": (ll.Kron(), "kron", STEPS),
    "Diagonal": (ll.Diagonal(), "diag", STEPS),
}


def problem(n: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network trained with δ = 1 on n inputs of six overlapping classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 6
    x = torch.randn(6, 36, generator=generator)[y] + 1.5 * torch.randn(n, 36, generator=generator)
    model = tanh_network((36, 50, 50, 6), seed=0)
    model = ll.train_map(model, (x, y), ll.Categorical(), 1.0, steps=300, rate=falling(1e-2, 300), progress=False)
    return model.double(), (x.double(), y)


def theirs(model: nn.Module, data: tuple[Tensor, Tensor], structure: str) -> Any:
    laplace = importlib.import_module("laplace")
    # The default backend multiplies the whole matrix with every unit vector, which takes many minutes.
    backend = getattr(
        importlib.import_module("laplace.curvature"), "BackPackGGN" if structure == "full" else "CurvlinopsGGN"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = laplace.Laplace(
            copy.deepcopy(model),
            "classification",
            subset_of_weights="all",
            hessian_structure=structure,
            prior_precision=1.0,
            backend=backend,
        )
        posterior.fit(DataLoader(TensorDataset(*data), batch_size=100))
    return posterior


def compare(name: str, n: int, rounds: int) -> dict[str, Any]:
    """Seconds of each choice, a fresh curvature each time, and both libraries' evidence under the same precisions."""
    structure, other, steps = STRUCTURES[name]
    model, data = problem(n)
    say(f"evidence: {name}, fits")
    ours = ll.laplace(model, data, ll.Categorical(), structure, 1.0, progress=False)
    peer = theirs(model, data, other)
    differences = (
        [_difference(ours, peer, d) for d in (0.3, 3.0)] if name == "Diagonal" else [_difference(ours, peer, 3.0)]
    )
    seconds: dict[str, list[float]] = {"choice": [], "choice and decomposition": [], "laplace-torch": []}
    for index in range(rounds):
        say(f"evidence: {name}, round {index + 1} of {rounds}")
        fresh = replace(ours, curvature=copy.deepcopy(replace(ours.curvature)))  # nothing decomposed yet
        start = time.perf_counter()
        chosen = ll.Evidence().maximise(fresh)
        seconds["choice"].append(time.perf_counter() - start)
        chosen.posterior.prepare()
        seconds["choice and decomposition"].append(time.perf_counter() - start)
        seconds["laplace-torch"].append(_timed(lambda: _optimise(peer, steps)) * STEPS / steps)
    found = float(chosen.posterior.prior.precision)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    ratios = {
        key: statistics.median(b / a for a, b in zip(seconds[key], seconds["laplace-torch"], strict=True))
        for key in ("choice", "choice and decomposition")
    }
    return {
        "weights": ours.network.size,
        "data": n,
        "seconds": medians,
        "laplace-torch steps timed": steps,
        "times faster": ratios,
        "bar": FASTER if name == "Full" else None,
        "precision": found,
        "log evidence": chosen.log_evidence[-1],
        "steps": len(chosen.log_evidence) - 1,
        "gradient norm": chosen.gradient_norm[-1],
        "laplace-torch precision": float(peer.prior_precision.mean()) if steps == STEPS else None,
        "relative differences of log evidence at given precisions": differences,
    }


def _difference(ours: Any, peer: Any, precision: float) -> float:
    mine = float(ours.with_prior(precision).log_evidence())
    with torch.no_grad():
        other = float(peer.log_marginal_likelihood(torch.tensor([precision], dtype=torch.float64)))
    return abs(mine - other) / abs(other)


def _optimise(peer: Any, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.optimize_prior_precision(method="marglik", n_steps=steps, lr=1e-1)


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--only", choices=list(STRUCTURES), action="append", help="default: all")
    parser.add_argument("--data", type=int, default=600, help="how many inputs to fit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "evidence.json")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    record = json.loads(given.out.read_text()) if given.out.exists() else {"what": "evidence"}
    for name in given.only or STRUCTURES:
        record[name] = compare(name, given.data, given.rounds) | {"environment": environment.describe(given.threads)}
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
