"""One measurement in a fresh process: `python -m benchmarks.worker JOB.json RESULT.json`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import oracle
from benchmarks.measure import Call, Samples, clock, extra_peak, interleave, ratio, summary
from benchmarks.peers import FLOORS, LIBRARIES, OURS, OUTPUTS, Kind, Library
from benchmarks.problems import PROBLEMS, Problem, Sizes

ORACLES = {"oracle": {}, "oracle, exact biases": {"exact_biases": True}, "oracle, diagonal Λ": {"diagonal": True}}


@dataclass(frozen=True)
class Job:
    """What a fresh process is to measure. task: one of the keys of TASKS."""

    task: str
    problem: str
    structure: Kind
    libraries: list[str]
    rounds: int = 5
    threads: int = 1


def sizes_of(problem: Problem, structure: Kind) -> Sizes:
    """The problem's sizes, which must be there."""
    sizes = problem.sizes(structure)
    if sizes is None:
        raise ValueError(f"problem {problem.name!r} has no sizes for {structure!r}")
    return sizes


def oracles_for(problem: Problem, structure: Kind) -> list[str]:
    """The oracles that can judge it, the one that is right first."""
    if not problem.tiny:
        return []
    variant = {"independent": (), "coupled": ("oracle, diagonal Λ",)}.get(structure, ("oracle, exact biases",))
    return ["oracle", *variant]


def latent_call(problem: Problem, structure: Kind, library: str) -> Call:
    """The latent covariance of the problem's batch, with everything before it done."""
    chosen, model, sizes = LIBRARIES[library], problem.model(), sizes_of(problem, structure)
    if structure in OUTPUTS:
        _ask(chosen, problem, structure, model, sizes.batch)
    posterior = chosen.posterior(model, problem.data(sizes.fit), structure)
    x = problem.inputs(sizes.batch)
    return lambda: chosen.latent_covariance(posterior, x)


def fit_call(problem: Problem, structure: Kind, library: str, ready: bool = True) -> Call:
    """A fit of the problem's timed number of inputs, ready to predict; or only its sums over the data."""
    n = sizes_of(problem, structure).fit_timed
    if n is None:
        raise ValueError(f"problem {problem.name!r} times no fit: set its fit_timed")
    chosen, model, data = LIBRARIES[library], problem.model(), problem.data(n)
    if structure not in OUTPUTS:  # there, peers divide the data
        _ask(chosen, problem, structure, model, n)
    measured = chosen.posterior if ready else chosen.curvature
    return lambda: measured(model, data, structure)


def _ask(library: Library, problem: Problem, structure: Kind, model: nn.Module, n: int) -> None:
    """End here, with its reason, if the library cannot take n inputs at once."""
    weights = sum(weight.numel() for weight in oracle.weights_of(model).values())
    refusal = library.refuses(structure, weights, n, problem.classes)
    if refusal:
        raise SystemExit(refusal)


def time_latent(job: Job) -> dict[str, Any]:
    """Latent covariances and floors in one interleaved run."""
    problem = PROBLEMS[job.problem]
    cases: dict[str, Call] = {
        floor.name: floor.prepare(problem.model(), problem.inputs(sizes_of(problem, job.structure).batch))
        for floor in FLOORS
    }
    cases |= {name: latent_call(problem, job.structure, name) for name in job.libraries}
    return _compared(interleave(cases, job.rounds), against=[floor.name for floor in FLOORS])


def time_fit(job: Job) -> dict[str, Any]:
    """Fits of every library in one interleaved run, and apart from them, in weight space, only the sums over the
    data."""
    problem = PROBLEMS[job.problem]
    parts = {"ready": True} if job.structure in OUTPUTS else {"ready": True, "sums": False}
    calls = {
        part: {name: fit_call(problem, job.structure, name, ready) for name in job.libraries}
        for part, ready in parts.items()
    }
    return {part: _compared(interleave(cases, job.rounds), against=[]) for part, cases in calls.items()}


def _compared(samples: dict[str, Samples], against: list[str]) -> dict[str, Any]:
    """Seconds of every case; how many times our seconds every other takes; every library in floors."""
    libraries = [name for name in samples if name in LIBRARIES]
    ours = samples.get(OURS.name)
    return {
        "clock": clock().__name__,
        "seconds": {name: asdict(summary(values)) for name, values in samples.items()},
        "times_ours": {name: asdict(ratio(samples[name], ours)) for name in libraries if ours and name != OURS.name},
        "floors": {
            name: {floor: asdict(ratio(samples[name], samples[floor])) for floor in against} for name in libraries
        },
    }


def memory_of(build: Callable[[Problem, Kind, str], Call]) -> Callable[[Job], dict[str, Any]]:
    """A task that measures the extra peak memory of the call of the job's one library."""

    def task(job: Job) -> dict[str, Any]:
        (library,) = job.libraries
        return asdict(extra_peak(build(PROBLEMS[job.problem], job.structure, library)))

    return task


def covariance(job: Job) -> dict[str, Any]:
    """The float64 latent covariance of a few inputs, by a library or by the oracle."""
    problem, (library,) = PROBLEMS[job.problem], job.libraries
    double = torch.float64
    model, data = problem.model(double), problem.data(problem.checked, double)
    x = problem.inputs(problem.checked, double)
    if library in ORACLES:
        values = oracle.latent_covariance(model, data, x, job.structure, **ORACLES[library])
    else:
        chosen = LIBRARIES[library]
        values = chosen.latent_covariance(chosen.posterior(model, data, job.structure), x)
    return {"covariance": values.tolist()}


TASKS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "time-latent": time_latent,
    "time-fit": time_fit,
    "memory-latent": memory_of(latent_call),
    "memory-fit": memory_of(fit_call),
    "covariance": covariance,
}


def main(job_path: str, result_path: str) -> None:
    """Do the job and write its result."""
    job = Job(**json.loads(Path(job_path).read_text()))
    torch.set_num_threads(job.threads)
    warnings.simplefilter("ignore")
    Path(result_path).write_text(json.dumps(TASKS[job.task](job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
