"""Writes results whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from linlap.errors import InputError


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """A folder to write to, made if need be; if nothing came to lie in it, it goes again."""
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be a folder for results ({error.strerror}); pass another one.") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"the folder {path} may not be written to; pass another one.")
    try:
        yield path
    finally:
        if made and not any(path.iterdir()):
            path.rmdir()


def save_picture(figure: Figure, path: Path) -> Path:
    """Saves a figure under a passing name and renames it: at `path` lies a whole picture, or what lay there before.

    256 colours are enough for a plot, and take a third of the room.
    """
    passing = path.with_name(f".{path.name}.{os.getpid()}.part")
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    try:
        with Image.open(drawn) as picture:
            few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            few.save(passing, format="png", optimize=True)
        passing.replace(path)
    finally:
        passing.unlink(missing_ok=True)
    return path
