"""Runs measurements in fresh processes and writes one JSON a problem and structure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import environment, imports
from benchmarks.peers import (
    DEFAULT_PEER,
    GP_PEERS,
    LIBRARIES,
    OURS,
    OUTPUTS,
    PEERS,
    STRUCTURES,
    Kind,
    Outputs,
    Structure,
)
from benchmarks.problems import PROBLEMS, Problem
from benchmarks.process import JobFailed, run_fresh, say
from benchmarks.worker import Job, oracles_for

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Plan:
    """What to run. every_backend: latent covariances and Gaussian processes by each of the peer's backends, not its
    default alone."""

    problems: tuple[str, ...]
    structures: tuple[Structure, ...] = STRUCTURES
    outputs: tuple[Outputs, ...] = OUTPUTS
    rounds: int = 5
    threads: int = 1
    every_backend: bool = False
    latent: bool = True
    fits: bool = True
    gps: bool = True
    time_gps: bool = True
    imports: bool = True


def run_job(job: Job) -> dict[str, Any]:
    """The job's result from a fresh process limited to the job's threads."""
    return run_fresh("benchmarks.worker", asdict(job), job.threads)


def measure_all(plan: Plan, results: Path = RESULTS) -> list[Path]:
    """Measure the plan's problems, write the results, and give the files written."""
    results.mkdir(parents=True, exist_ok=True)
    written = [_write(results / "environment.json", environment.describe(plan.threads))]
    if plan.imports:
        written.append(_write(results / "import.json", imports.measure(plan.rounds)))
    for problem in (PROBLEMS[name] for name in plan.problems):
        for structure in plan.structures if problem.weights else ():
            if plan.latent:
                path = results / f"{problem.name}-{structure.lower()}.json"
                written.append(_write(path, measure_latent(problem, structure, plan)))
            if plan.fits and problem.weights.fit_timed is not None:
                path = results / f"fit-{problem.name}-{structure.lower()}.json"
                written.append(_write(path, measure_fit(problem, structure, plan)))
        for outputs in plan.outputs if plan.gps and problem.gp and (plan.time_gps or problem.tiny) else ():
            path = results / f"gp-{problem.name}-{outputs}.json"
            written.append(_write(path, measure_gp(problem, outputs, plan)))
    return written


def measure_latent(problem: Problem, structure: Structure, plan: Plan) -> dict[str, Any]:
    """Agreement, memory and time of the latent covariance of the problem's batch."""
    peers = PEERS if plan.every_backend else [DEFAULT_PEER]
    names = [OURS.name, *(peer.name for peer in peers)]
    record = _header("latent covariance", problem, structure, plan)
    if not problem.tiny:
        record |= _memory_and_time("latent", problem, structure, plan, names)
    return record | {"agreement": agreement(problem, structure, plan.threads)}


def measure_fit(problem: Problem, structure: Structure, plan: Plan) -> dict[str, Any]:
    """Agreement, memory and time of a fit, with every backend of the peer."""
    names = [OURS.name, *(peer.name for peer in PEERS)]
    record = _header("fit", problem, structure, plan)
    record |= _memory_and_time("fit", problem, structure, plan, names)
    return record | {"agreement": agreement(problem, structure, plan.threads)}


def measure_gp(problem: Problem, outputs: Outputs, plan: Plan) -> dict[str, Any]:
    """Of a Gaussian process: agreement with the oracle where the problem is tiny, else memory and time of its fit and
    of the latent covariance."""
    record = _header("gaussian process", problem, outputs, plan)
    record["environment"] = environment.describe(plan.threads)
    if problem.tiny:
        return record | {"agreement": agreement(problem, outputs, plan.threads)}
    names = [OURS.name, *(peer.name for peer in (GP_PEERS if plan.every_backend else GP_PEERS[:1]))]
    parts = {part: _memory_and_time(part, problem, outputs, plan, names) for part in ("fit", "latent")}
    failed = {f"{name} ({part})": why for part, found in parts.items() for name, why in found.pop("failed").items()}
    return record | parts | {"failed": failed}


def _header(what: str, problem: Problem, structure: Kind, plan: Plan) -> dict[str, Any]:
    sizes = problem.sizes(structure)
    return {
        "what": what,
        "problem": problem.name,
        "title": problem.title,
        "structure": structure,
        "inputs": sizes.fit_timed if what == "fit" else sizes.batch,
        "data": sizes.fit_timed if what == "fit" else sizes.fit,
        "dtype": "float32",
        "threads": plan.threads,
        "tiny": problem.tiny,
    }


def _memory_and_time(what: str, problem: Problem, structure: Kind, plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    """Memory of each library alone; then those that did not fail are timed together."""
    memory: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        say(f"{problem.name} {structure} {what}: memory of {name}")
        try:
            memory[name] = run_job(Job(f"memory-{what}", problem.name, structure, [name], threads=plan.threads))
        except JobFailed as failure:
            failed[name] = str(failure)
    say(f"{problem.name} {structure} {what}: time of {', '.join(memory) or 'the floors'}")
    try:
        job = Job(f"time-{what}", problem.name, structure, list(memory), plan.rounds, plan.threads)
        timing = run_job(job) if memory or what == "latent" else {}
    except JobFailed as failure:
        failed["all, timed together"] = str(failure)
        timing = {}
    return {"extra_memory": memory, "time": timing, "failed": failed}


@cache
def agreement(problem: Problem, structure: Kind, threads: int) -> dict[str, Any]:
    """Relative error in float64 of each library's covariance to the reference: the oracle where the problem
    is tiny, else the peer's default backend. Fit and latent covariance of one posterior share it."""
    oracles = oracles_for(problem, structure)
    reference = oracles[0] if oracles else DEFAULT_PEER.name
    answers: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in dict.fromkeys([*oracles, reference, *LIBRARIES]):
        say(f"{problem.name} {structure}: float64 answer of {name}")
        try:
            answers[name] = run_job(Job("covariance", problem.name, structure, [name], threads=threads))["covariance"]
        except JobFailed as failure:
            failed[name] = str(failure)
    return {"reference": reference, "relative_error": _errors(answers, reference), "failed": failed} | {
        f"relative_error to {other}": _errors(answers, other) for other in oracles[1:]
    }


def _errors(answers: dict[str, Any], reference: str) -> dict[str, float]:
    """Of each library's answer to the reference's; empty when the reference has none."""
    return {
        name: relative_error(answers[name], answers[reference])
        for name in LIBRARIES
        if name in answers and reference in answers and name != reference
    }


def relative_error(values: list[Any], truth: list[Any]) -> float:
    """Norm of the difference of two nested lists of one shape over the norm of the second."""
    pairs = list(zip(_flat(values), _flat(truth), strict=True))
    difference = sum((value - true) ** 2 for value, true in pairs)
    return (difference / sum(true**2 for _, true in pairs)) ** 0.5


def _flat(values: list[Any]) -> Iterable[float]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _write(path: Path, record: dict[str, Any]) -> Path:
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
