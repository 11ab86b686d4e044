"""`python -m benchmarks`: measure, write benchmarks/results/*.json, print the tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.peers import OUTPUTS, STRUCTURES
from benchmarks.problems import PROBLEMS
from benchmarks.report import tables
from benchmarks.run import RESULTS, Plan, measure_all

_QUICK_ROUNDS, _ROUNDS, _FULL_ROUNDS = 3, 5, 15
_QUICK = ("mlp", "3c3d", "small-mlp", "tiny-mlp", "tiny-deep-mlp", "tiny-conv")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        action="store_true",
        help=f"{_QUICK_ROUNDS} rounds of {', '.join(_QUICK)}; Gaussian processes are checked, not timed",
    )
    size.add_argument("--full", action="store_true", help=f"{_FULL_ROUNDS} rounds, and every backend everywhere")
    parser.add_argument("--problem", action="append", choices=list(PROBLEMS), help="may be repeated; default: all")
    parser.add_argument("--structure", action="append", choices=STRUCTURES, help="may be repeated; default: both")
    parser.add_argument("--outputs", action="append", choices=OUTPUTS, help="of Gaussian processes; default: both")
    parser.add_argument("--only", choices=["latent", "fit", "gp", "import"], help="one kind of measurement")
    parser.add_argument("--rounds", type=int, help="rounds of each timed run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    parser.add_argument("--report", action="store_true", help="measure nothing, print what the folder holds")
    return parser


def main() -> None:
    """Run the command line."""
    given = _parser().parse_args()
    if given.report:
        print(tables(sorted(given.results.glob("*.json"))))
        return
    plan = Plan(
        problems=tuple(given.problem or (_QUICK if given.quick else PROBLEMS)),
        structures=tuple(given.structure or STRUCTURES),
        outputs=tuple(given.outputs or OUTPUTS),
        rounds=given.rounds or (_FULL_ROUNDS if given.full else _QUICK_ROUNDS if given.quick else _ROUNDS),
        threads=given.threads,
        every_backend=given.full,
        latent=given.only in (None, "latent"),
        fits=given.only in (None, "fit"),
        gps=given.only in (None, "gp"),
        time_gps=not given.quick,
        imports=given.only in (None, "import"),
    )
    print(tables(measure_all(plan, given.results)))


if __name__ == "__main__":
    main()
