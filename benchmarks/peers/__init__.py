"""Every library that is measured, by name."""

from __future__ import annotations

from benchmarks.peers.base import STRUCTURES, Library, Structure
from benchmarks.peers.laplace_torch import BACKENDS, LaplaceTorch
from benchmarks.peers.linlap_ import Linlap
from benchmarks.peers.plain import FLOORS, Floor

OURS = Linlap()
PEERS: tuple[Library, ...] = tuple(LaplaceTorch(backend) for backend in BACKENDS)
LIBRARIES: dict[str, Library] = {library.name: library for library in (OURS, *PEERS)}
DEFAULT_PEER = PEERS[0]

__all__ = [
    "DEFAULT_PEER",
    "FLOORS",
    "LIBRARIES",
    "OURS",
    "PEERS",
    "STRUCTURES",
    "Floor",
    "Library",
    "Structure",
]
