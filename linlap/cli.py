"""The command `linlap`. Commands import what they need when they run."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Says how sure a trained PyTorch network is.", no_args_is_help=True, add_completion=False)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        number = version("linlap")
    except PackageNotFoundError:
        number = "(not installed: run from its source)"
    typer.echo(f"linlap {number}")
    raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("linlap-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, the split and the networks.", min=0)] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny networks, coarse pictures: to see that it runs.")
    ] = False,
) -> None:
    """Train two small networks, compare MAP, BNN and GLM predictives, draw pictures. Takes half a minute."""
    _need({"matplotlib": "plot", "sklearn": "sklearn"})
    from linlap.errors import LinlapError
    from linlap.report.demo import run

    try:
        run(out, seed=seed, quick=quick)
    except LinlapError as error:
        _stop(str(error))


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="toy, banana or uci.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small form of it, in minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets as CSV files, one for each.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results; by default that of the experiment.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured already.")] = False,
) -> None:
    """Run an experiment of the paper: its numbers and figures. What was broken off goes on where it was."""
    _need({"matplotlib": "plot", "sklearn": "sklearn"})
    from linlap.errors import LinlapError

    try:
        _experiments().reproduce(name, quick=quick, data=data, out=out, fresh=fresh, say=typer.echo)
    except LinlapError as error:
        _stop(str(error))
    except KeyboardInterrupt:
        _stop("broken off; the same command goes on from here.")


def _experiments() -> Any:
    """How experiments are run; they lie beside the package in its repository and are not installed with it."""
    checkout = Path(__file__).parents[1]
    if not (checkout / "experiments" / "common" / "run.py").is_file():
        _stop(
            f"this command needs the repository of linlap, whose folder experiments/ is not in {checkout}. Clone it, "
            "then run in the clone: pip install -e '.[experiments]'"
        )
    sys.path.insert(0, str(checkout))
    return import_module("experiments.common.run")


def _need(extras: dict[str, str]) -> None:
    """Stops with advice if a module is not there; `extras` names the extra that brings it."""
    missing = [module for module in extras if find_spec(module) is None]
    if missing:
        wanted = ",".join(extras.values())
        _stop(f"this command needs {' and '.join(missing)}. Run: pip install 'linlap[{wanted}]'")


def _stop(why: str) -> None:
    typer.echo(f"linlap: {why}", err=True)
    raise typer.Exit(1)
