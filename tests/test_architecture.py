"""The house rules that a linter does not know: layers, sizes, where strings become objects, import time."""

from __future__ import annotations

import ast
import graphlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECKED_FOLDERS = ("linlap", "tests", "benchmarks", "experiments")
LAYERS = (  # lowest first: a module imports from its own line and from those above it, never from below
    ("types", "errors", "tree", "seeds", "checks"),
    ("linalg",),
    ("jacobian",),
    ("layers",),
    ("network", "data"),
    ("likelihoods",),
    ("integrators",),
    ("prior",),
    ("curvature", "inducing"),
    ("distributed",),
    ("sweep",),
    ("posteriors",),
    ("choice", "evidence", "leave_one_out", "selection", "fit", "gp"),
    ("refine",),
    ("baselines",),
    ("predictives", "uncertainty", "metrics", "ood"),
    ("validation",),
    ("plotting", "report", "io", "sklearn", "cli"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LINES_OF_A_FILE, LINES_OF_A_FUNCTION, ARGUMENTS = 500, 60, 9
HEAVY = ("matplotlib", "pandas", "rich", "scipy", "sklearn", "typer")
IMPORT_TIME_RATIO = 1.3


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted((ROOT / "linlap").rglob("*.py"))}
TREES = {name: parse(path) for name, path in PATHS.items()}


def rank(module: str) -> int:
    """Where a module stands in the list; `linlap` itself stands above all."""
    if module == "linlap":
        return len(LAYERS)
    name = module.split(".")[1]
    assert name in RANK, f"{module} belongs to no layer: move it into one of LAYERS"
    return RANK[name]


def linlap_imports(module: str) -> Iterator[tuple[str, int]]:
    """The modules of linlap that a module names, with the line: at the top, in functions, for types alike."""
    parents = module.split(".") if PATHS[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*start, node.module] if node.module else start)
            submodules = [f"{base}.{alias.name}" for alias in node.names]
            found = [name if name in TREES else base for name in submodules]
        else:
            continue
        yield from ((name, node.lineno) for name in found if name.split(".")[0] == "linlap")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_module_belongs_to_a_layer() -> None:
    strangers = [name for name in TREES if name != "linlap" and name.split(".")[1] not in RANK]
    assert not strangers, f"these belong to no layer: {strangers}; move each into one of LAYERS"


@pytest.mark.parametrize("module", TREES)
def test_imports_only_go_down(module: str) -> None:
    upward = [
        f"{where(PATHS[module], line)} imports {target}, which stands higher"
        for target, line in linlap_imports(module)
        if rank(target) > rank(module)
    ]
    assert not upward, "\n".join(upward)


def test_no_imports_in_a_circle() -> None:
    graph = {module: {target for target, _ in linlap_imports(module)} for module in TREES}
    graphlib.TopologicalSorter(graph).prepare()


def class_names(*layers: str) -> set[str]:
    return {
        node.name
        for module, tree in TREES.items()
        if module != "linlap" and module.split(".")[1] in layers
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def names_an_object_by_string(node: ast.AST, classes: set[str], choices: set[str]) -> str | None:
    """What is wrong with a node that turns a string into an object, or None."""
    if isinstance(node, ast.Dict):
        picked = [
            value.id
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
            if isinstance(value, ast.Name) and value.id in classes
        ]
        return f"a table from strings to the classes {picked}" if picked else None
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        bare = isinstance(node.func, ast.Name)
        found = name in ("import_module", "__import__") or (bare and name in ("eval", "exec", "globals"))
        return f"{name}() finds objects by name" if found else None
    if isinstance(node, ast.Compare):
        operands = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
    elif isinstance(node, ast.MatchValue):
        operands = [node.value]
    else:
        return None
    constants = [part.value for part in operands if isinstance(part, ast.Constant)]
    strings = [value for value in constants if isinstance(value, str)]
    named = [text for text in strings if text.lower().replace("_", "").replace("-", "") in choices]
    return f"compares with {named}: pass the object itself" if named else None


@pytest.mark.parametrize("module", [name for name in TREES if name != "linlap"])
def test_strings_become_objects_only_in_the_top_layer(module: str) -> None:
    if rank(module) == len(LAYERS) - 1:
        return
    classes = class_names(*RANK)
    choices = {name.lower() for name in class_names("likelihoods", "integrators", "predictives")}
    offences = [
        f"{where(PATHS[module], node.lineno)} {problem}"
        for node in ast.walk(TREES[module])
        if (problem := names_an_object_by_string(node, classes, choices))
    ]
    assert not offences, "\n".join(offences)


def python_files() -> list[Path]:
    return [path for folder in CHECKED_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(parse(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_files_are_small() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    large = [f"{p.relative_to(ROOT)}: {size} lines" for p, size in sizes.items() if size > LINES_OF_A_FILE]
    assert not large, "\n".join(large)


def test_functions_fit_a_screen() -> None:
    large = [
        f"{where(path, f.lineno)} {f.name}: {lines} lines"
        for path in python_files()
        for f in functions(path)
        if (lines := (f.end_lineno or f.lineno) - f.lineno + 1) > LINES_OF_A_FUNCTION
    ]
    assert not large, "\n".join(large)


def test_functions_take_few_arguments() -> None:
    wide = [
        f"{where(path, f.lineno)} {f.name}: {count} arguments"
        for path in python_files()
        for f in functions(path)
        if (count := len(f.args.posonlyargs + f.args.args + f.args.kwonlyargs)) > ARGUMENTS
    ]
    assert not wide, "\n".join(wide)


def fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_leaves_heavy_modules_alone() -> None:
    loaded = fresh_python(f"import sys, linlap; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]", f"`import linlap` loads {loaded}: import them in the function that needs them"


def test_import_adds_little_to_torch() -> None:
    """torch first, then linlap, in one process: the share linlap adds, which a busy machine hardly moves."""
    code = (
        "from time import perf_counter as now; start = now(); import torch; middle = now(); import linlap; "
        "print((now() - start) / (middle - start))"
    )
    ratio = statistics.median(float(fresh_python(code)) for _ in range(3))
    assert ratio <= IMPORT_TIME_RATIO, f"`import linlap` takes {ratio:.2f} times `import torch`"


@pytest.mark.slow
def test_import_time_in_interleaved_processes() -> None:
    def seconds(module: str) -> float:
        code = f"from time import perf_counter as now; start = now(); import {module}; print(now() - start)"
        return float(fresh_python(code))

    pairs = [(seconds("torch"), seconds("linlap")) for _ in range(9)]
    torch_time, linlap_time = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = linlap_time / torch_time
    assert ratio <= IMPORT_TIME_RATIO, f"linlap takes {linlap_time:.2f} s, torch {torch_time:.2f} s"
