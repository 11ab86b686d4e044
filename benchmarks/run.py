"""Runs measurements in fresh processes and writes one JSON a problem and structure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import environment, imports
from benchmarks.peers import DEFAULT_PEER, LIBRARIES, OURS, PEERS, STRUCTURES, Structure
from benchmarks.problems import PROBLEMS, Problem
from benchmarks.worker import ORACLES, Job

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parents[1]
_LONGEST = 900  # seconds a process may take
_LAST_LINE = 300  # characters kept of the reason a process gives for failing


@dataclass(frozen=True)
class Plan:
    """What to run. every_backend: latent covariances by each of the peer's backends, not its default alone."""

    problems: tuple[str, ...]
    structures: tuple[Structure, ...] = STRUCTURES
    rounds: int = 5
    threads: int = 1
    every_backend: bool = False
    latent: bool = True
    fits: bool = True
    imports: bool = True


class JobFailed(Exception):
    """A measuring process ended without a result; its last words are the message."""


def run_job(job: Job) -> dict[str, Any]:
    """The job's result from a fresh process limited to the job's threads."""
    limits = {name: str(job.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with tempfile.TemporaryDirectory() as folder:
        job_path, result_path = Path(folder, "job.json"), Path(folder, "result.json")
        job_path.write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "benchmarks.worker", str(job_path), str(result_path)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_LONGEST,
                cwd=_ROOT,
                env=os.environ | limits,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise JobFailed(f"took over {_LONGEST} s") from None
        if done.returncode:
            words = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
            raise JobFailed(words[-1][:_LAST_LINE])
        return json.loads(result_path.read_text())


def measure_all(plan: Plan, results: Path = RESULTS) -> list[Path]:
    """Measure the plan's problems, write the results, and give the files written."""
    results.mkdir(parents=True, exist_ok=True)
    written = [_write(results / "environment.json", environment.describe(plan.threads))]
    if plan.imports:
        written.append(_write(results / "import.json", imports.measure(plan.rounds)))
    for name in plan.problems:
        for structure in plan.structures:
            problem = PROBLEMS[name]
            if plan.latent:
                path = results / f"{name}-{structure.lower()}.json"
                written.append(_write(path, measure_latent(problem, structure, plan)))
            if plan.fits and problem.fit_timed is not None:
                path = results / f"fit-{name}-{structure.lower()}.json"
                written.append(_write(path, measure_fit(problem, structure, plan)))
    return written


def measure_latent(problem: Problem, structure: Structure, plan: Plan) -> dict[str, Any]:
    """Agreement, memory and time of the latent covariance of the problem's batch."""
    peers = PEERS if plan.every_backend else [DEFAULT_PEER]
    names = [OURS.name, *(peer.name for peer in peers)]
    record = _header("latent covariance", problem, structure, plan, inputs=problem.batch)
    if not problem.tiny:
        record |= _memory_and_time("latent", problem, structure, plan, names)
    return record | {"agreement": agreement(problem, structure, plan.threads)}


def measure_fit(problem: Problem, structure: Structure, plan: Plan) -> dict[str, Any]:
    """Agreement, memory and time of a fit, with every backend of the peer."""
    names = [OURS.name, *(peer.name for peer in PEERS)]
    record = _header("fit", problem, structure, plan, inputs=problem.fit_timed or 0)
    record |= _memory_and_time("fit", problem, structure, plan, names)
    return record | {"agreement": agreement(problem, structure, plan.threads)}


def _header(what: str, problem: Problem, structure: Structure, plan: Plan, inputs: int) -> dict[str, Any]:
    return {
        "what": what,
        "problem": problem.name,
        "title": problem.title,
        "structure": structure,
        "inputs": inputs,
        "dtype": "float32",
        "threads": plan.threads,
        "tiny": problem.tiny,
    }


def _memory_and_time(
    what: str, problem: Problem, structure: Structure, plan: Plan, names: Sequence[str]
) -> dict[str, Any]:
    """Memory of each library alone; then those that did not fail are timed together."""
    memory: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        _say(f"{problem.name} {structure} {what}: memory of {name}")
        try:
            memory[name] = run_job(Job(f"memory-{what}", problem.name, structure, [name], threads=plan.threads))
        except JobFailed as failure:
            failed[name] = str(failure)
    _say(f"{problem.name} {structure} {what}: time of {', '.join(memory) or 'the floors'}")
    try:
        job = Job(f"time-{what}", problem.name, structure, list(memory), plan.rounds, plan.threads)
        timing = run_job(job) if memory or what == "latent" else {}
    except JobFailed as failure:
        failed["all, timed together"] = str(failure)
        timing = {}
    return {"extra_memory": memory, "time": timing, "failed": failed}


@cache
def agreement(problem: Problem, structure: Structure, threads: int) -> dict[str, Any]:
    """Relative error in float64 of each library's covariance to the reference: the oracle where the problem
    is tiny, else the peer's default backend. Fit and latent covariance of one posterior share it."""
    oracles = list(ORACLES) if problem.tiny else []
    reference = oracles[0] if oracles else DEFAULT_PEER.name
    answers: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in dict.fromkeys([*oracles, reference, *LIBRARIES]):
        _say(f"{problem.name} {structure}: float64 answer of {name}")
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


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)
