"""Where a long refinement stands, on disk, so that one broken off goes on."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from linlap import tree
from linlap.errors import InputError
from linlap.posteriors import WeightPosterior

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the tensors of a value; `key` says of which run, so that no other run takes it up."""

    path: Path
    key: str

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None, settings: Any, posterior: WeightPosterior) -> Checkpoint | None:
        """For a run with these settings from this posterior; None without a path."""
        if path is None:
            return None
        target = Path(path)
        if target.is_dir() or not target.parent.is_dir():
            raise InputError(f"checkpoint={str(path)!r} is a folder, or lies in none; pass the path of a file.")
        start = zlib.crc32(posterior.mean.cpu().numpy().tobytes())
        return cls(target, f"{settings!r} {start:08x} {posterior.prior} {posterior.curvature.totals}")

    def write(self, value: Any) -> None:
        """Replaces what was there only once all is written."""
        tensors = {f"{index:05}": t.detach().cpu().contiguous().clone() for index, t in enumerate(_leaves(value))}
        partial = self.path.with_name(self.path.name + ".partial")
        try:
            save_file(tensors, partial, metadata={"linlap": json.dumps({"key": self.key})})
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, like: T) -> T | None:
        """The value, in the form of another; None if there is no file."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                key = json.loads((file.metadata() or {}).get("linlap", "{}")).get("key")
                stored = [file.get_tensor(name) for name in sorted(file.keys())]
        except (SafetensorError, json.JSONDecodeError, OSError) as error:
            raise InputError(f"{self.path} is no checkpoint: {error}; remove it to start anew.") from error
        if key != self.key or len(stored) != len(list(_leaves(like))):
            raise InputError(
                f"{self.path} is the checkpoint of another run (other settings, data, prior or weights); pass another "
                "path, or remove it to start anew."
            )
        places = iter(stored)
        return tree.map_tensors(lambda t: next(places).to(t.device), like)


def _leaves(value: Any) -> Iterator[Tensor]:
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    tree.map_tensors(note, value)
    return iter(found)
