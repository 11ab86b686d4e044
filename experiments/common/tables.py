"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.common.checks import Check
from experiments.common.rows import Mean, Row

NONE = "–"
NAMES = {"nll": "NLL", "accuracy": "Accuracy", "ece": "ECE"}


def shown(value: Mean | None, digits: int = 4, sign: bool = False) -> str:
    """Mean ± standard error."""
    if value is None:
        return NONE
    tiny = value.mean != 0 and abs(value.mean) < 0.5 * 10**-digits
    kind = ".0e" if tiny else f".{digits}f"
    mean = f"{value.mean:{'+' if sign else ''}{kind}}".replace("-", "−")
    return mean if value.stderr is None else f"{mean} ± {value.stderr:{kind}}".replace("e-", "e−")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of numbers stand to the right."""
    lines = [list(row) for row in rows]
    right = [bool(lines) and all(_is_number(line[place]) for line in lines) for place in range(len(head))]
    body = [head, ["---:" if numbers else "---" for numbers in right], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in body)


def _is_number(cell: str) -> bool:
    try:
        float(cell.partition(" ")[0].replace("−", "-").replace(",", ""))
    except ValueError:
        return cell == NONE
    return True


def titled(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"**{title}**\n\n{table(head, rows)}"


def compared(rows: Sequence[Row], digits: int = 3) -> str:
    """Ours beside the paper's, a line a score."""
    head = ["dataset", "network", "method", "metric", "ours", "paper", "difference", "reproduced"]
    return table(head, [_compared_line(row, digits) for row in rows])


def _compared_line(row: Row, digits: int) -> list[str]:
    kept = row.reproduces()
    return [
        *(row.dataset, row.network, row.method, NAMES.get(row.metric, row.metric)),
        shown(row.ours, digits),
        shown(row.paper, digits),
        NONE if row.difference is None else f"{row.difference:+.1f}".replace("-", "−"),
        NONE if kept is None else "yes" if kept else "**no**",
    ]


def pivot(rows: Sequence[Row], metric: str, digits: int = 3) -> str:
    """A line a method, a column a network of each data set."""
    places = list(dict.fromkeys((row.dataset, row.network) for row in rows))
    found = {(row.dataset, row.network, row.method): row.ours for row in rows if row.metric == metric}
    methods = dict.fromkeys(row.method for row in rows if row.metric == metric)
    several = len({dataset for dataset, _ in places}) > 1
    head = ["method", *(f"{dataset} {network}" if several else network for dataset, network in places)]
    lines = [[method, *(shown(found.get((*place, method)), digits) for place in places)] for method in methods]
    return table(head, lines)


def claims(checks: Iterable[Check]) -> str:
    """The paper's claims, whether they hold, and of which numbers."""
    return table(["claim", "holds", "found"], [[c.claim, "yes" if c.holds else "**no**", c.found] for c in checks])


def origin(environment: dict[str, Any]) -> str:
    """Where numbers come from, in a sentence."""
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    threads = environment["threads"]
    return (
        f"{environment['cpu']}, {threads} thread{'s' if threads > 1 else ''}, {_time(environment['cpu_seconds'])} of "
        f"CPU time; Python {environment['python']}, {packages}; {environment['date'][:10]}."
    )


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
