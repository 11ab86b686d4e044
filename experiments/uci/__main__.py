"""`python -m experiments.uci`: as `linlap reproduce uci`, but some sets, networks or groups only, or on another device.

Results and report are of all cells that are there; `linlap reproduce uci` goes on with the others.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from experiments.common.cells import Store, missing
from experiments.common.run import default_folder, run
from experiments.uci.config import FULL, NETWORKS, QUICK
from experiments.uci.data import load
from experiments.uci.experiment import Cell, Uci, default_device
from experiments.uci.groups import GROUPS
from experiments.uci.sets import SETS
from linlap.errors import LinlapError


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.uci", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the sets as CSV files")
    parser.add_argument("--out", type=Path, help="folder for results; by default that of the experiment")
    parser.add_argument("--set", action="append", choices=list(SETS), help="default: all")
    parser.add_argument("--network", action="append", choices=list(NETWORKS), help="default: all")
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="default: all")
    parser.add_argument("--device", type=torch.device, help="default: a GPU where there is one")
    parser.add_argument("--quick", action="store_true", help="a small form of it, in minutes")
    parser.add_argument("--report", action="store_true", help="measure nothing: the report of what there is")
    given = parser.parse_args()
    whole = Uci(QUICK if given.quick else FULL, given.data, given.device or default_device())
    out = given.out or default_folder("uci", given.quick)
    absent = {cell.name for cell in missing(whole.cells(), whole.settings, Store(out / "cells"))}

    def wanted(cell: Cell) -> bool:
        asked = ((given.set, cell.dataset), (given.network, cell.network), (given.group, cell.group))
        return cell.name not in absent or (not given.report and all(not some or one in some for some, one in asked))

    chosen = replace(whole, wanted=wanted)
    todo = [cell for cell in chosen.cells() if cell.name in absent]
    for name in dict.fromkeys(cell.dataset for cell in todo):
        load(name, given.data)
    print(f"{len(todo)} cells to measure, about {sum(map(chosen.seconds, todo)) / 60:.0f} minutes.", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    for check in chosen.checks(run(chosen, out)):
        print(check)


if __name__ == "__main__":
    try:
        main()
    except LinlapError as error:
        sys.exit(f"linlap: {error}")
    except KeyboardInterrupt:
        sys.exit("linlap: broken off; the same command goes on from here.")
