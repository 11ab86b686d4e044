"""`python -m benchmarks.gpu`: latent covariances and fits on a GPU, beside their floors, as one JSON file.

Everything is timed with device events, float32 with TF32 allowed; errors are to float64 on the same device, with TF32
allowed and without. Floors: a forward and C backward passes, the faster of single passes and one batched pass.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import linlap as ll
from benchmarks import environment
from benchmarks.peers import FLOORS
from benchmarks.problems import PROBLEMS, Problem

BATCHES = {"mlp": (512, 4096, 16384), "3c3d": (128, 1024, 2048), "allcnn": (64, 256, 512)}
STRUCTURES = {"Kron": ll.Kron(), "Diagonal": ll.Diagonal()}
LONGEST = 0.6  # seconds of repeats for one figure


@contextmanager
def tf32(allowed: bool) -> Any:
    """Allow or forbid TF32 in products and convolutions."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def milliseconds(call: Callable[[], object]) -> float:
    """Median over repeats after two warm-ups, by device events."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    repeats = max(3, min(30, int(LONGEST / max(time.perf_counter() - start, 1e-4))))
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in events)[repeats // 2]


def posterior_of(problem: Problem, structure: str, dtype: torch.dtype = torch.float32) -> Any:
    """Fitted on few data, on the GPU."""
    x, y = problem.data(64, dtype)
    model = problem.model(dtype).cuda()
    posterior = ll.laplace(model, (x.cuda(), y.cuda()), ll.Categorical(), STRUCTURES[structure], progress=False)
    return posterior.prepare()


def latent(problem: Problem, structure: str, batch: int) -> dict[str, Any]:
    """Milliseconds of a latent covariance beside the floors, and peak memory."""
    posterior, x = posterior_of(problem, structure), problem.inputs(batch).cuda()

    def call() -> Tensor:
        return posterior.latent(x).cov

    call()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    ours = milliseconds(call)
    peak = torch.cuda.max_memory_allocated() - base
    floors = {}
    for floor in FLOORS:
        try:
            floors[floor.name] = milliseconds(floor.prepare(problem.model().cuda(), x))
        except (RuntimeError, torch.OutOfMemoryError) as error:
            floors[floor.name] = None
            print(f"  {problem.name} {batch} {floor.name}: {str(error)[:80]}", flush=True)
        torch.cuda.empty_cache()
    least = min(floors[name] for name in ("floor-weights", "floor-weights-batched") if floors[name])
    return {
        "problem": problem.name,
        "structure": structure,
        "batch": batch,
        "milliseconds": ours,
        "images_a_second": 1e3 * batch / ours,
        "floors": floors,
        "in_floors": ours / least,
        "extra_mib": peak / 2**20,
    }


def errors(problem: Problem, structure: str, batch: int = 32) -> dict[str, float]:
    """Relative errors to float64, with TF32 and without, of everything: fit and prediction."""
    x = problem.inputs(batch)
    with tf32(False):
        truth = posterior_of(problem, structure, torch.float64).latent(x.double().cuda()).cov
        plain = posterior_of(problem, structure).latent(x.cuda()).cov
    fast = posterior_of(problem, structure).latent(x.cuda()).cov
    return {
        name: float((cov.double() - truth).norm() / truth.norm()) for name, cov in (("float32", plain), ("tf32", fast))
    }


def fit(problem: Problem, structure: str, n: int) -> dict[str, Any]:
    """Seconds of the sums over n data, and with the decompositions."""
    data = tuple(t.cuda() for t in problem.data(n))
    model = problem.model().cuda()

    def sums() -> Any:
        return ll.laplace(model, data, ll.Categorical(), STRUCTURES[structure], batch_size=2048, progress=False)

    def ready() -> Any:
        return sums().prepare()

    return {
        "problem": problem.name,
        "structure": structure,
        "inputs": n,
        "sums_milliseconds": milliseconds(sums),
        "ready_milliseconds": milliseconds(ready),
    }


def profile(call: Callable[[], object], rows: int = 16) -> str:
    """Where the device's time goes: milliseconds, how often, and by which kernel."""
    call()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as record:
        call()
        torch.cuda.synchronize()
    kernels = [event for event in record.key_averages() if event.self_device_time_total and not event.cpu_time_total]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in kernels)
    lines = [f"{total / 1e3:9.2f} ms in all"]
    for event in kernels[:rows]:
        lines.append(f"{event.self_device_time_total / 1e3:9.2f} ms {event.count:5d} x {event.key[:100]}")
    return "\n".join(lines)


def _profile(problem: Problem, structure: str) -> None:
    """Print where the time of one latent covariance goes, and of one fit."""
    n = BATCHES[problem.name][-1]
    posterior, x = posterior_of(problem, structure), problem.inputs(n).cuda()
    print(f"latent {problem.name} {structure} {n}\n" + profile(lambda: posterior.latent(x)), flush=True)
    data, model = tuple(t.cuda() for t in problem.data(n)), problem.model().cuda()
    print(
        f"fit {problem.name} {structure} {n}\n"
        + profile(
            lambda: ll.laplace(model, data, ll.Categorical(), STRUCTURES[structure], batch_size=n, progress=False)
        ),
        flush=True,
    )


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--problem", action="append", choices=list(BATCHES))
    parser.add_argument("--structure", action="append", choices=list(STRUCTURES))
    parser.add_argument("--fits", type=int, nargs="*", default=[], metavar="N", help="numbers of data to fit")
    parser.add_argument("--profile", action="store_true", help="print where the time goes at the largest batch")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    given = parser.parse_args()
    record: dict[str, Any] = {"environment": environment.describe(1), "latent": [], "errors": [], "fits": []}
    record["gpu"] = torch.cuda.get_device_name()
    with tf32(True):
        for name in given.problem or BATCHES:
            problem = PROBLEMS[name]
            for structure in given.structure or STRUCTURES:
                for batch in BATCHES[name]:
                    row = latent(problem, structure, batch)
                    record["latent"].append(row)
                    print(json.dumps(row), flush=True)
                record["errors"].append({"problem": name, "structure": structure} | errors(problem, structure))
                print(json.dumps(record["errors"][-1]), flush=True)
                for n in given.fits:
                    record["fits"].append(fit(problem, structure, n))
                    print(json.dumps(record["fits"][-1]), flush=True)
                if given.profile:
                    _profile(problem, structure)
                given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
