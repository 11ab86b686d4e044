"""`python -m benchmarks.pages`: put what results/*.json hold into README.md and docs/benchmarks.md.

Each piece stands between `<!-- NAME -->` and `<!-- end of NAME -->`; the rest of a page is left as it is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.cells import number
from benchmarks.comparisons import Comparison, comparisons
from benchmarks.report import load, parts
from benchmarks.run import RESULTS
from benchmarks.verdicts import Verdict, verdicts

Record = dict[str, Any]
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write both pages."""
    paths = sorted(RESULTS.glob("*.json"))
    environment, gpu = (_read(name) for name in ("environment", "gpu"))
    others = {name: _read(name) for name in ("import", "evidence", "validation", "refinement")}
    records = load(paths)
    found = comparisons(records)
    _write(ROOT / "README.md", {"speed": speed(found, environment, gpu)})
    pieces = {
        "machine": f"{machine(environment)}; {_versions(environment)}.",
        "bars": markdown([_bar_row(verdict) for verdict in verdicts(records, others)]),
        "comparisons": markdown([_speed_row(row) for row in found]),
        "tables": "\n\n".join(_fenced(part) for part in parts(paths)),
        "gpu": gpu_tables(gpu),
    }
    _write(ROOT / "docs" / "benchmarks.md", pieces)


def _read(name: str) -> Record:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _write(page: Path, pieces: dict[str, str]) -> None:
    text = page.read_text(encoding="utf-8")
    for name, piece in pieces.items():
        text = insert(text, name, piece)
    page.write_text(text, encoding="utf-8")


def insert(text: str, name: str, piece: str) -> str:
    """The page with the piece of that name replaced."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"no page to write on: {start} ... {end} is not there")
    return pattern.sub(lambda _: f"{start}\n{piece}\n{end}", text, count=1)


def markdown(rows: list[dict[str, str]]) -> str:
    """A table; columns of numbers to the right."""
    header = list(rows[0])
    right = [all(row[name][:1].isdigit() or row[name] == "-" for row in rows) for name in header]
    lines = [header, ["--:" if numbers else "---" for numbers in right], *([*row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(environment: Record) -> str:
    """Where numbers come from, in words."""
    threads = environment["threads"]
    return (
        f"{environment['cpu']}, {environment['cores']} cores, {environment['memory_gib']:g} GiB, "
        f"{'one thread' if threads == 1 else f'{threads} threads'}"
    )


def _versions(environment: Record) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return f"Python {environment['python']}, {packages}; {environment['date'][:10]}"


def speed(found: list[Comparison], environment: Record, gpu: Record) -> str:
    """The section of the README."""
    packages = environment["packages"]
    where = f"{machine(environment)}, torch {packages['torch']}"
    head = f"Beside laplace-torch {packages['laplace-torch']}, float32, medians of interleaved rounds ({where})."
    return "\n\n".join([f"{head}\n{_range(found)}", _PICTURE, _gpu_line(gpu)])


def _range(found: list[Comparison]) -> str:
    """From how many times to how many, for each group."""
    groups: dict[str, list[float]] = {}
    for row in found:
        if row.times is not None:
            groups.setdefault(row.group, []).append(row.times)
    said = (f"{name} {number(min(times))} to {number(max(times))}" for name, times in groups.items())
    return f"Times as fast: {', '.join(said)}."


def _speed_row(row: Comparison) -> dict[str, str]:
    return {
        "what": row.group,
        "network": row.problem,
        "posterior": row.kind,
        "inputs": str(row.inputs),
        "linlap": _duration(row.ours),
        "laplace-torch": _duration(row.peer),
        "times faster": number(row.times),
        "its memory in ours": number(row.share),
    }


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{number(seconds, 1e3)} ms" if seconds < 1 else f"{number(seconds)} s"


def _gpu_line(gpu: Record) -> str:
    best = {}
    for row in gpu["latent"]:
        if row["structure"] == "Kron":
            best[row["problem"]] = max(best.get(row["problem"], row), row, key=lambda one: one["images_a_second"])
    shown = ", ".join(
        f"{name} {row['images_a_second']:,.0f} ({row['in_floors']:.2g} floors)" for name, row in best.items()
    )
    return f"On one {gpu['gpu']} (TF32), inputs a second with a Kron covariance each: {shown}."


def gpu_tables(gpu: Record) -> str:
    """Latent covariances, fits and errors on the GPU."""
    versions = f"{gpu['gpu']}, torch {gpu['environment']['packages']['torch']}; {gpu['environment']['date'][:10]}"
    return "\n\n".join(
        [versions + ".", *(markdown([row(one) for one in gpu[kind]]) for kind, row in _GPU_ROWS.items() if gpu[kind])]
    )


def _gpu_latent(row: Record) -> dict[str, str]:
    return {
        **_start(row),
        "inputs": f"{row['batch']:,}",
        "ms": number(row["milliseconds"]),
        "inputs a second": f"{row['images_a_second']:,.0f}",
        "floors": number(row["in_floors"]),
        "extra MiB": number(row["extra_mib"]),
    }


def _gpu_fit(row: Record) -> dict[str, str]:
    return {
        **_start(row),
        "data": f"{row['inputs']:,}",
        "sums over the data, ms": number(row["sums_milliseconds"]),
        "ready to predict, ms": number(row["ready_milliseconds"]),
    }


def _gpu_error(row: Record) -> dict[str, str]:
    return {**_start(row), "error of float32": f"{row['float32']:.0e}", "error with TF32": f"{row['tf32']:.0e}"}


def _start(row: Record) -> dict[str, str]:
    return {"network": row["problem"], "structure": row["structure"]}


_PICTURE = "![Seconds and extra memory of linlap and laplace-torch, problem by problem](docs/pictures/speed.png)"
_GPU_ROWS = {"latent": _gpu_latent, "fits": _gpu_fit, "errors": _gpu_error}


def _bar_row(verdict: Verdict) -> dict[str, str]:
    sign = "≥" if verdict.more_is_better else "≤"
    return {
        "what": verdict.what,
        "quantity": verdict.quantity,
        "bar": f"{sign} {number(verdict.wanted)}",
        "measured": number(verdict.found),
        "reached": "not measured" if verdict.found is None else "yes" if verdict.reached else "**no**",
    }


def _fenced(table: str) -> str:
    title, _, rest = table.partition("\n")
    return f"### {title.split(' (')[0].rstrip(':')}\n\n```text\n{table}\n```" if rest else f"```text\n{table}\n```"


if __name__ == "__main__":
    main()
