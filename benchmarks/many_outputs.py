"""`python -m benchmarks.many_outputs`: variances of a thousand outputs, of a posterior over the last layer.

The floor is the layer's own matrix product. One interleaved run in a fresh process, float32.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import linlap as ll
from benchmarks import bars, environment
from benchmarks.cells import MIB, judged, number, titled
from benchmarks.measure import extra_peak, interleave, ratio, summary
from benchmarks.peers.base import PRIOR_PRECISION
from benchmarks.process import run_fresh, say
from benchmarks.run import RESULTS
from linlap.posteriors import WeightPosterior

OUT = RESULTS / "many-outputs.json"
PRODUCT = "the layer's product"
_STRUCTURES: dict[str, ll.curvature.Structure] = {"Kron": ll.Kron(), "Diagonal": ll.Diagonal()}


@dataclass(frozen=True)
class Job:
    """A layer of `width` inputs and `classes` outputs, and a batch; seeds make the fit, which is not timed, short."""

    classes: int = 1000
    width: int = 512
    inputs: int = 256
    data: int = 64
    seeds: int = 10
    rounds: int = 15
    threads: int = 1


def measure(job: Job) -> dict[str, Any]:
    """Seconds, quotients within rounds, extra memory, and the error of the variances by their definition in float64."""
    torch.manual_seed(0)
    layer = nn.Linear(job.width, job.classes)
    x = torch.randn(job.inputs, job.width)
    posteriors = {name: _fitted(layer, job, structure) for name, structure in _STRUCTURES.items()}
    # Before the rounds: the first call keeps what later ones use again.
    memory = {name: asdict(extra_peak(lambda p=p: p.latent(x, diagonal=True))) for name, p in posteriors.items()}
    cases: dict[str, Any] = {PRODUCT: lambda: nn.functional.linear(x, layer.weight.detach(), layer.bias.detach())}
    cases |= {name: (lambda p=p: p.latent(x, diagonal=True)) for name, p in posteriors.items()}
    samples = interleave(cases, job.rounds)
    return {
        "seconds": {name: asdict(summary(values)) for name, values in samples.items()},
        "products": {name: asdict(ratio(samples[name], samples[PRODUCT])) for name in posteriors},
        "extra_memory": memory,
        "error": {name: _error(structure) for name, structure in _STRUCTURES.items()},
    }


def _fitted(layer: nn.Linear, job: Job, structure: ll.curvature.Structure) -> WeightPosterior:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(job.data, job.width, generator=generator).to(layer.weight.dtype)
    y = torch.randint(job.classes, (job.data,), generator=generator)
    likelihood, prior = ll.Categorical(), ll.Prior(PRIOR_PRECISION)
    return ll.laplace(layer, (x, y), likelihood, structure, prior, seeds=job.seeds, progress=False).prepare()


def _error(structure: ll.curvature.Structure) -> float:
    """Relative, in float64 and small: Jᵀ solved with the precision, J written out."""
    job = Job(classes=40, width=15)
    posterior = _fitted(nn.Linear(job.width, job.classes).double(), job, structure)
    x = torch.randn(8, job.width, dtype=torch.float64)
    eye = torch.eye(job.classes, dtype=torch.float64)
    of_weight = torch.einsum("cd,ni->ncdi", eye, x).flatten(2)
    j = torch.cat([of_weight, eye.expand(len(x), -1, -1)], -1)
    truth = (j * posterior.precision.solve(j.flatten(0, 1)).view(j.shape)).sum(-1)
    return float((posterior.latent(x, diagonal=True).cov - truth).norm() / truth.norm())


def table(record: dict[str, Any]) -> str:
    """Variances beside the layer's product."""
    title = "Variances of {classes} outputs, last layer of width {width}, {inputs} inputs, float32"
    rows = [{"structure": name, "found": found} for name, found in record["products"].items()]
    return titled(title.format(**record), rows, lambda row: _row(record, row["structure"], row["found"]["median"]))


def _row(record: dict[str, Any], name: str, products: float) -> dict[str, str]:
    return {
        "structure": name,
        "ms": number(record["seconds"][name]["median"], 1e3),
        "product ms": number(record["seconds"][PRODUCT]["median"], 1e3),
        "products": judged(products, bars.MANY_OUTPUTS, more_is_better=False),
        "extra MiB": number(record["extra_memory"][name]["bytes"], 1 / MIB),
        "MiB of all covariances": number(4 * record["inputs"] * record["classes"] ** 2, 1 / MIB),
        "error": f"{record['error'][name]:.0e}",
    }


def main() -> None:
    """Run the command line, or the one job that a fresh process was started for."""
    if len(sys.argv) == 3 and all(name.endswith(".json") for name in sys.argv[1:]):
        job = Job(**json.loads(Path(sys.argv[1]).read_text()))
        torch.set_num_threads(job.threads)
        Path(sys.argv[2]).write_text(json.dumps(measure(job)))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_outputs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=Job.rounds)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    job = Job(rounds=given.rounds)
    say(f"variances of {job.classes} outputs")
    record = {"what": "many outputs", **asdict(job), "environment": environment.describe(job.threads)}
    record |= run_fresh("benchmarks.many_outputs", asdict(job), job.threads)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
