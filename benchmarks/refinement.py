"""`python -m benchmarks.refinement`: refining in the linear model: over outputs against over weights, and at scale.

"spaces": natural-gradient steps with a full covariance on 483 inputs of 14 features and a 2×50 tanh network with one
output, as the library does them and with a P × P Cholesky factor a step, interleaved. "scale": 3c3d on 5000 images made
of digits, refined on minibatches in a fresh process: seconds, peak memory, held-out NLL, the ELBO, which is what such
steps raise, and the log joint density at the mean, which is not.
"many": 100 networks in one call against one call each. "predictions": held-out NLL before and after on small problems.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import linlap as ll
from benchmarks import environment, many, networks
from benchmarks.process import run_fresh, say
from benchmarks.run import RESULTS
from linlap.data import as_batches
from linlap.refine.elbo import advance, elbo, initial, standard_noise
from linlap.refine.problem import problem_of
from linlap.refine.spaces import FunctionSpace, Space, WeightSpace
from linlap.refine.streamed_mode import log_joint
from linlap.report.training import falling, tanh_network

_LONGEST = 3 * 3600
FASTER, GIB = 20.0, 4.0  # what is to be reached


@dataclass(frozen=True)
class Job:
    """One of the measurements."""

    what: str
    threads: int
    steps: int = 200
    rounds: int = 3
    train: int = 5000
    epochs: int = 3
    folder: str = ""


def spaces(job: Job) -> dict[str, Any]:
    """Seconds of the library's call, and of single steps over weights and over outputs, the ELBO included in all."""
    x = torch.randn(483, 14, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + 0.5 * x[:, 1] ** 2 > 0.3).float()
    model = tanh_network((14, 50, 50, 1), seed=0)
    model = ll.train_map(model, (x, y), ll.Bernoulli(), 1.0, steps=300, rate=falling(1e-2, 300), progress=False)
    posterior = ll.laplace(model, (x, y), ll.Bernoulli(), ll.Full(), 1.0, progress=False)
    problem = problem_of(posterior, as_batches((x, y), 256, torch.device("cpu")))
    method = ll.NaturalGradient(steps=250)
    calls: list[float] = []
    steps: dict[str, list[float]] = {"outputs": [], "weights": []}
    ends: dict[str, Tensor] = {}
    for _ in range(job.rounds):
        start = time.perf_counter()
        ll.refine(posterior, (x, y), method, progress=False)
        calls.append(time.perf_counter() - start)
        for name, space, count in (("outputs", FunctionSpace(problem), 20), ("weights", WeightSpace(problem), 2)):
            seconds, ends[name] = _steps(space, count)
            steps[name].append(seconds)
    per_call = [call / (250 * step) for call, step in zip(calls, steps["weights"], strict=True)]
    error = (ends["outputs"] - ends["weights"]).norm() / ends["weights"].norm()
    return {
        "weights": posterior.network.size,
        "data": len(x),
        "seconds of 250 steps": statistics.median(calls),
        "seconds a step over outputs": statistics.median(steps["outputs"]),
        "seconds a step over weights": statistics.median(steps["weights"]),
        "times faster than 250 steps over weights": 1 / statistics.median(per_call),
        "bar": FASTER,
        "relative difference of the means after 2 steps": float(error),
    }


def _steps(space: Space, count: int) -> tuple[float, Tensor]:
    """Seconds a step, and the mean after two."""
    noise, state = standard_noise(space, 1, 0), initial(space)
    start = time.perf_counter()
    for step in range(count):
        state = advance(space, state, 0.01, noise)
        elbo(space, state)
        mean = space.weights(state.mean) if step == 1 else None
        if mean is not None:
            kept = mean
    return (time.perf_counter() - start) / count, kept


def digits(train: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's digits, enlarged to 3×32×32; those to train with are moved and tinted, 500 others held out."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.as_tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    large = nn.functional.interpolate(images, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    y = torch.as_tensor(data.target)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=generator)
    held, kept = order[:500], order[500:]
    rows = kept[torch.randint(len(kept), (train,), generator=generator)]
    moves = torch.randint(-3, 4, (train, 2), generator=generator)
    tint = 0.6 + 0.4 * torch.rand(train, 3, 1, 1, generator=generator)
    moved = [torch.roll(large[row], tuple(move.tolist()), (1, 2)) for row, move in zip(rows, moves, strict=True)]
    x = torch.stack(moved) * tint + 0.1 * torch.randn(train, 3, 32, 32, generator=generator)
    return (x, y[rows]), (large[held].contiguous(), y[held])


def scale(job: Job) -> dict[str, Any]:
    """Train, fit, refine; memory is counted from before the refinement on."""
    train, held = digits(job.train)
    posterior = _fitted(job, train).prepare()
    before = _score(posterior, held)
    peak_before = _peak()
    checkpoint = Path(job.folder, "steps") if job.folder else None
    method = ll.NaturalGradient("kron", steps=job.steps, batch_size=128, checkpoint=checkpoint)
    start = time.perf_counter()
    refined = ll.refine(posterior, train, method, progress=False)
    seconds, peak = time.perf_counter() - start, _peak()
    bound = refined.refinement.objective
    return {
        "weights": posterior.network.size,
        "data": len(train[1]),
        "batch": 128,
        "steps": job.steps,
        "seconds": seconds,
        "peak_bytes": peak,
        "peak_bytes_before": peak_before,
        "bar_gib": GIB,
        "negative_log_joint_before": -log_joint(posterior),
        "negative_log_joint_after": -log_joint(refined),
        "elbo_first_20": float(bound[:20].mean()),
        "elbo_last_20": float(bound[-20:].mean()),
        "held_out_before": before,
        "held_out_after": _score(refined, held),
    }


def _fitted(job: Job, train: tuple[Tensor, Tensor]) -> Any:
    """Trained and fitted, or taken up from the folder where that was done before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = networks.c3d3()
    weights, fitted = Path(job.folder, "weights.pt"), Path(job.folder, "posterior")
    if job.folder and fitted.exists():
        model.load_state_dict(torch.load(weights, weights_only=True))
        return ll.load(fitted, model)
    _train(model, train, job.epochs)
    posterior = ll.laplace(model, train, ll.Categorical(), ll.Kron(), 1.0, seeds=1, progress=False)
    if job.folder:
        Path(job.folder).mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), weights)
        ll.save(posterior, fitted)
    return posterior


def _train(model: nn.Module, data: tuple[Tensor, Tensor], epochs: int) -> None:
    """Adam on minibatches, with δ = 1: on the mean loss a weight decay of 1 / N."""
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1 / len(x))
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def _score(posterior: Any, held: tuple[Tensor, Tensor]) -> dict[str, float]:
    predictive = ll.GLM(posterior)(held[0])
    return {"nll": ll.metrics.nll(predictive, held[1]), "accuracy": ll.metrics.accuracy(predictive, held[1])}


def _peak() -> int:
    """The most memory this process ever held; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


JOBS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "spaces": spaces,
    "scale": scale,
    "many": lambda job: many.speed(job.rounds),
    "predictions": lambda job: many.predictions(splits=5),
}


def main() -> None:
    """Run the command line, or the one job that a fresh process was started for."""
    if len(sys.argv) == 3 and all(name.endswith(".json") for name in sys.argv[1:]):
        job = Job(**json.loads(Path(sys.argv[1]).read_text()))
        torch.set_num_threads(job.threads)
        Path(sys.argv[2]).write_text(json.dumps(JOBS[job.what](job)))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refinement", description=__doc__)
    parser.add_argument("--only", choices=list(JOBS), action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS / "refinement.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="", help="where a broken off run at scale is kept, to be gone on with")
    given = parser.parse_args()
    record = json.loads(given.out.read_text()) if given.out.exists() else {"what": "refinement"}
    for what in given.only or JOBS:
        job = Job(what, threads=2 if what == "scale" else 1, rounds=given.rounds, folder=given.folder)
        say(f"refinement: {what}")
        found = run_fresh("benchmarks.refinement", asdict(job), job.threads, _LONGEST)
        record[what] = found | {"environment": environment.describe(job.threads)}
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
