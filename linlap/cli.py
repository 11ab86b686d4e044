"""The command `linlap`. Commands import what they need when they run."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

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


def _need(extras: dict[str, str]) -> None:
    """Stops with advice if a module is not there; `extras` names the extra that brings it."""
    missing = [module for module in extras if find_spec(module) is None]
    if missing:
        wanted = ",".join(extras.values())
        _stop(f"this command needs {' and '.join(missing)}. Run: pip install 'linlap[{wanted}]'")


def _stop(why: str) -> None:
    typer.echo(f"linlap: {why}", err=True)
    raise typer.Exit(1)
