"""`python -m benchmarks.large_gp`: a Gaussian process of thousands of data, linlap alone: seconds and peak memory.

One fresh process for each kind of outputs, float32; results/large-gp.json keeps what other runs found for the others.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment
from benchmarks.gp_report import gp_tables
from benchmarks.peers import OURS, OUTPUTS, Outputs
from benchmarks.problems import PROBLEMS
from benchmarks.process import run_fresh, say
from benchmarks.run import RESULTS

_LONGEST = 3600


@dataclass(frozen=True)
class LargeJob:
    """A fit of `data` and the latent covariances of `inputs` others."""

    outputs: Outputs
    problem: str = "mlp"
    data: int = 3200
    inputs: int = 1000
    threads: int = 2


def measure(job: LargeJob) -> dict[str, Any]:
    """Once, in this process, which has done nothing else."""
    problem = PROBLEMS[job.problem]
    model, data, x = problem.model(), problem.data(job.data), problem.inputs(job.inputs)
    before = _peak()
    start = time.perf_counter()
    posterior = OURS.gp_fit(model, data, coupled=job.outputs == "coupled")
    fitted, peak_of_fit = time.perf_counter(), _peak()
    covariance = OURS.latent_covariance(posterior, x)
    done = time.perf_counter()
    return {
        "fit_seconds": fitted - start,
        "predict_seconds": done - fitted,
        "bytes_before": before,
        "peak_bytes_of_fit": peak_of_fit,
        "peak_bytes": _peak(),
        "mean_variance": covariance.diagonal(dim1=1, dim2=2).mean().item(),
        "posterior": repr(posterior),
    }


def _peak() -> int:
    """The most memory this process ever held; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def record_of(jobs: list[LargeJob], path: Path) -> dict[str, Any]:
    """Measure the jobs, of one problem and size; results of the same size for other outputs are kept."""
    first, shared = jobs[0], ("data", "inputs", "threads")
    record = {"what": "large gaussian process", "problem": first.problem, "structure": "Everything"}
    record |= {name: getattr(first, name) for name in shared} | {"title": PROBLEMS[first.problem].title, "runs": []}
    if path.exists():
        old = json.loads(path.read_text())
        record["runs"] = old["runs"] if all(old[name] == record[name] for name in ("problem", *shared)) else []
    for job in jobs:
        say(f"{job.problem} {job.data} data, {job.outputs} outputs")
        found = {"outputs": job.outputs, "environment": environment.describe(job.threads)}
        found |= run_fresh("benchmarks.large_gp", asdict(job), job.threads, _LONGEST)
        record["runs"] = [*(run for run in record["runs"] if run["outputs"] != job.outputs), found]
        path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def main() -> None:
    """Run the command line, or the one job that a fresh process was started for."""
    if len(sys.argv) == 3 and all(name.endswith(".json") for name in sys.argv[1:]):
        job = LargeJob(**json.loads(Path(sys.argv[1]).read_text()))
        torch.set_num_threads(job.threads)
        Path(sys.argv[2]).write_text(json.dumps(measure(job)))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_gp", description=__doc__)
    parser.add_argument("--outputs", action="append", choices=OUTPUTS, help="default: both, coupled last")
    parser.add_argument("--data", type=int, default=LargeJob.data)
    parser.add_argument("--inputs", type=int, default=LargeJob.inputs)
    parser.add_argument("--threads", type=int, default=LargeJob.threads)
    parser.add_argument("--out", type=Path, default=RESULTS / "large-gp.json")
    given = parser.parse_args()
    sizes = {"data": given.data, "inputs": given.inputs, "threads": given.threads}
    jobs = [LargeJob(outputs, **sizes) for outputs in given.outputs or OUTPUTS]
    print("\n".join(part for part in gp_tables([record_of(jobs, given.out)], dict) if part))


if __name__ == "__main__":
    main()
