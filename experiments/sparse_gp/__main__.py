"""`python -m experiments.sparse_gp`: measure what is missing, write results, tables and the picture."""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path

import linlap as ll
from experiments.sparse_gp import report
from experiments.sparse_gp.config import FULL, QUICK
from experiments.sparse_gp.run import RESULTS, run

_ROOT = Path(__file__).parents[2]
PAGE, PICTURE = _ROOT / "docs" / "sparse.md", _ROOT / "docs" / "pictures" / "sparse.png"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sparse_gp", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 seeds and 50 or 100 inputs, in results/quick")
    parser.add_argument("--main", action="store_true", help="the main prior precision only")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew")
    parser.add_argument("--report", action="store_true", help="measure nothing: tables and picture of what there is")
    given = parser.parse_args()
    folder = RESULTS / "quick" if given.quick else RESULTS
    # Kernels of 4000 rows for 2886 weights are singular, and say so each time.
    warnings.simplefilter("ignore", ll.LinlapWarning)
    if given.report:
        result = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    else:
        config = QUICK if given.quick else FULL
        config = replace(config, precisions=config.precisions[:1]) if given.main else config
        result = run(config, folder, given.fresh)
    report.write(result, folder / "tables.md", folder / "sparse.png" if given.quick else PICTURE)
    if not given.quick and PAGE.exists():
        report.insert(result, PAGE)
    print(report.tables(result))


if __name__ == "__main__":
    main()
