"""`python -m experiments.default_prior`: measure what is missing, write results and the tables of docs/prior.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from experiments.default_prior.run import RESULTS, Config, run, tables

PAGE = Path(__file__).parents[2] / "docs" / "prior.md"
BEGIN, END = "<!-- default prior -->", "<!-- end of default prior -->"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.default_prior", description=__doc__)
    parser.add_argument("--worker", default="0/1", help="i/n: measure every n-th cell only, starting with the i-th")
    parser.add_argument("--report", action="store_true", help="measure nothing: the tables of what there is")
    given = parser.parse_args()
    index, workers = (int(part) for part in given.worker.split("/"))
    if given.report:
        result = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    else:
        result = run(Config(), worker=(index, workers))
    text = tables(result)
    if workers == 1 and PAGE.exists() and BEGIN in (page := PAGE.read_text(encoding="utf-8")):
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
