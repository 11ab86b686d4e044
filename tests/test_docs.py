"""The Markdown files keep their word: their Python runs, and what they link to exists."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LINKED_FOLDERS = ("docs", "benchmarks", "experiments")
FENCE = re.compile(r"^ *(?P<ticks>`{3,})(?P<info>[^`]*)$")
LINK = re.compile(
    r"\]\(\s*<?(?P<inline>[^)\s>]+)>?[^)]*\)"  # [text](target "title"), ![picture](target)
    r"|^ *\[[^\]^]+\]:\s*<?(?P<reference>[^\s>]+)"  # [label]: target
    r"|\b(?:src|href)=\"(?P<html>[^\"]+)\""
)
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is the line of its first line of code."""

    info: tuple[str, ...]
    code: str
    line: int


def split(path: Path) -> tuple[list[Block], dict[int, str]]:
    """The fenced blocks of a page, and its other lines by number."""
    blocks: list[Block] = []
    prose: dict[int, str] = {}
    opened: re.Match[str] | None = None
    code: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, code = fence, []
        elif opened is None:
            prose[number] = line
        elif fence and not fence["info"].strip() and len(fence["ticks"]) >= len(opened["ticks"]):
            text = textwrap.dedent("\n".join(code))
            blocks.append(Block(tuple(opened["info"].split()), text, number - len(code)))
            opened = None
        else:
            code.append(line)
    assert opened is None, f"{path.relative_to(ROOT)}: a ``` is never closed"
    return blocks, prose


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def fresh_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary directory, one thread, a fixed seed, no windows; all put back afterwards."""
    threads, dtype, state = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_rng_state(state)


@pytest.mark.usefixtures("fresh_start")
@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_runs(page: Path) -> None:
    """Blocks share their names in order. Tracebacks show the page's own file and line."""
    __tracebackhide__ = True
    if not page.exists():
        pytest.fail(f"{page_name(page)} is missing", pytrace=False)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in split(page)[0]:
        if block.info[:1] != ("python",):
            continue
        unknown = set(block.info[1:]) - {"no-run"}
        assert not unknown, f"{page_name(page)}:{block.line - 1}: after ```python only `no-run` has a meaning"
        program = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
        if "no-run" not in block.info:
            exec(program, namespace)


def anchors(page: Path) -> set[str]:
    """The names that headings get on the web: lower case, punctuation dropped, spaces as hyphens."""
    headings = [line.lstrip("#").strip() for line in split(page)[1].values() if re.match(r"#{1,6} ", line)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in split(page)[1].items():
        for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            yield number, match["inline"] or match["reference"] or match["html"]


def broken(page: Path, target: str) -> bool:
    if ELSEWHERE.match(target):
        return False
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    if not file.exists():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in anchors(file)


def linked_pages() -> list[Path]:
    return sorted(ROOT.glob("*.md")) + [p for f in LINKED_FOLDERS for p in sorted((ROOT / f).rglob("*.md"))]


@pytest.mark.parametrize("page", linked_pages(), ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = [f"{page_name(page)}:{number}: {target}" for number, target in links(page) if broken(page, target)]
    assert not dead, "links to nothing:\n" + "\n".join(dead)
