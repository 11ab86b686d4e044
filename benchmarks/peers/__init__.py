"""Every library that is measured, by name."""

from __future__ import annotations

from benchmarks.peers.base import OUTPUTS, STRUCTURES, Kind, Library, Outputs, Structure
from benchmarks.peers.laplace_torch import BACKENDS, GP_BACKENDS, LaplaceTorch
from benchmarks.peers.linlap_ import Linlap
from benchmarks.peers.plain import FLOORS, Floor

OURS = Linlap()
PEERS: tuple[Library, ...] = tuple(LaplaceTorch(backend) for backend in BACKENDS)
LIBRARIES: dict[str, Library] = {library.name: library for library in (OURS, *PEERS)}
DEFAULT_PEER = PEERS[0]
GP_PEERS: tuple[Library, ...] = tuple(LaplaceTorch(backend) for backend in GP_BACKENDS)

__all__ = [
    "DEFAULT_PEER",
    "FLOORS",
    "GP_PEERS",
    "LIBRARIES",
    "OURS",
    "OUTPUTS",
    "PEERS",
    "STRUCTURES",
    "Floor",
    "Kind",
    "Library",
    "Outputs",
    "Structure",
]
