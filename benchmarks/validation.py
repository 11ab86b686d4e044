"""`python -m benchmarks.validation`: priors chosen on held-out data: a grid's scores beside one prediction of the data.

The MLP of the core's table with a Kron posterior, all classes' covariances and the default integral over f, on one
thread in a fresh process. Interleaved rounds; seconds are the processor's, so that other processes count less.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import linlap as ll
from benchmarks import environment
from benchmarks.problems import PROBLEMS
from benchmarks.process import run_fresh, say
from benchmarks.run import RESULTS

BARS = {"10 precisions": 2.0, "50 precisions": 5.0}  # times one prediction
_LONGEST = 3600


@dataclass(frozen=True)
class Job:
    """How much is measured."""

    train: int = 2048
    valid: int = 4096
    rounds: int = 5


def measure(job: Job) -> dict[str, Any]:
    """Seconds of each call in each round, and quotients with the prediction within a round."""
    problem = PROBLEMS["mlp"]
    data = problem.data(job.train)
    posterior = ll.laplace(problem.model(), data, ll.Categorical(), ll.Kron(), 1.0, progress=False).prepare()
    x = problem.inputs(job.valid, seed=4)
    y = ll.MAP(posterior)(x).sample()

    def search(count: int, heats: int | None = None) -> Callable[[], object]:
        temperatures = None if heats is None else torch.logspace(-2, 2, heats)
        grid = torch.logspace(-2, 2, count)
        return lambda: ll.Validation((x, y), grid, temperatures, progress=False).minimise(posterior)

    cases: dict[str, Callable[[], object]] = {
        "prediction": lambda: ll.GLM(posterior)(x).probs,
        "prediction in batches of 256": lambda: [ll.GLM(posterior)(part).probs for part in x.split(256)],
        "1 precision": search(1),
        "10 precisions": search(10),
        "50 precisions": search(50),
        "10 precisions × 5 temperatures": search(10, 5),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ll.LinlapWarning)
        for index in range(job.rounds + 1):
            for name, call in cases.items():
                start = time.process_time()
                call()
                if index:  # the round before the first is for warming up
                    seconds[name].append(time.process_time() - start)
    times = {
        name: median(own / one for own, one in zip(spent, seconds["prediction"], strict=True))
        for name, spent in seconds.items()
    }
    return {
        "problem": problem.title,
        "structure": "Kron",
        "validation data": job.valid,
        "seconds": {name: median(spent) for name, spent in seconds.items()},
        "times one prediction": times,
        "bars": BARS,
        "rounds": seconds,
    }


def main() -> None:
    """Run the command line, or the one job that a fresh process was started for."""
    if len(sys.argv) == 3 and all(name.endswith(".json") for name in sys.argv[1:]):
        torch.set_num_threads(1)
        job = Job(**json.loads(Path(sys.argv[1]).read_text()))
        Path(sys.argv[2]).write_text(json.dumps(measure(job)))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=Job.rounds)
    parser.add_argument("--out", type=Path, default=RESULTS / "validation.json")
    given = parser.parse_args()
    say("validation: one prediction, 10 and 50 values")
    found = run_fresh("benchmarks.validation", asdict(Job(rounds=given.rounds)), 1, _LONGEST)
    record = {"what": "validation"} | found | {"environment": environment.describe(1)}
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
