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

from benchmarks import oracle
from benchmarks.measure import Call, Samples, extra_peak, interleave, ratio, summary
from benchmarks.peers import FLOORS, LIBRARIES, OURS, Structure
from benchmarks.problems import PROBLEMS, Problem

ORACLES = {"oracle": False, "oracle, exact biases": True}


@dataclass(frozen=True)
class Job:
    """What a fresh process is to measure. task: one of the keys of TASKS."""

    task: str
    problem: str
    structure: Structure
    libraries: list[str]
    rounds: int = 5
    threads: int = 1


def latent_call(problem: Problem, structure: Structure, library: str) -> Call:
    """The latent covariance of the problem's batch, with everything before it done."""
    chosen = LIBRARIES[library]
    posterior = chosen.fit(problem.model(), problem.data(problem.fit), structure)
    x = problem.inputs(problem.batch)
    return lambda: chosen.latent_covariance(posterior, x)


def fit_call(problem: Problem, structure: Structure, library: str, ready: bool = True) -> Call:
    """A fit of the problem's timed number of inputs, ready to predict; or only its sums over the data."""
    if problem.fit_timed is None:
        raise ValueError(f"problem {problem.name!r} times no fit: set its fit_timed")
    chosen, model, data = LIBRARIES[library], problem.model(), problem.data(problem.fit_timed)
    weights = sum(weight.numel() for weight in oracle.weights_of(model).values())
    refusal = chosen.refuses(structure, weights, problem.fit_timed, problem.classes)
    if refusal:
        raise SystemExit(refusal)
    measured = chosen.fit if ready else chosen.curvature
    return lambda: measured(model, data, structure)


def time_latent(job: Job) -> dict[str, Any]:
    """Latent covariances and floors in one interleaved run."""
    problem = PROBLEMS[job.problem]
    cases: dict[str, Call] = {
        floor.name: floor.prepare(problem.model(), problem.inputs(problem.batch)) for floor in FLOORS
    }
    cases |= {name: latent_call(problem, job.structure, name) for name in job.libraries}
    return _compared(interleave(cases, job.rounds), against=[floor.name for floor in FLOORS])


def time_fit(job: Job) -> dict[str, Any]:
    """Fits of every library in one interleaved run, and apart from them only the sums over the data."""
    problem = PROBLEMS[job.problem]
    ready = {name: fit_call(problem, job.structure, name) for name in job.libraries}
    sums = {name: fit_call(problem, job.structure, name, ready=False) for name in job.libraries}
    return {
        "ready": _compared(interleave(ready, job.rounds), against=[]),
        "sums": _compared(interleave(sums, job.rounds), against=[]),
    }


def _compared(samples: dict[str, Samples], against: list[str]) -> dict[str, Any]:
    """Seconds of every case; how many times our seconds every other takes; every library in floors."""
    libraries = [name for name in samples if name in LIBRARIES]
    ours = samples.get(OURS.name)
    return {
        "seconds": {name: asdict(summary(values)) for name, values in samples.items()},
        "times_ours": {name: asdict(ratio(samples[name], ours)) for name in libraries if ours and name != OURS.name},
        "floors": {
            name: {floor: asdict(ratio(samples[name], samples[floor])) for floor in against} for name in libraries
        },
    }


def memory_of(build: Callable[[Problem, Structure, str], Call]) -> Callable[[Job], dict[str, Any]]:
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
        values = oracle.latent_covariance(model, data, x, job.structure, exact_biases=ORACLES[library])
    else:
        chosen = LIBRARIES[library]
        values = chosen.latent_covariance(chosen.fit(model, data, job.structure), x)
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
