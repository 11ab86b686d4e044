"""What is run, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SPLITS = (711, 1, 75, 359, 17, 420, 129, 666, 69, 36)
NETWORKS = {"1x50_tanh": (50,), "2x50_tanh": (50, 50)}


@dataclass(frozen=True)
class Config:
    """The protocol. `splits` are the seeds of the splits and of the first weights."""

    sets: tuple[str, ...] = (
        "glass",
        "ionosphere",
        "cancer",
        "australian",
        "vehicle",
        "waveform",
        "digits",
        "satellite",
    )
    networks: tuple[str, ...] = tuple(NETWORKS)
    splits: tuple[int, ...] = SPLITS
    precisions: tuple[float, ...] = tuple(float(d) for d in np.logspace(-2, 2, 10))
    steps: int = 10_000
    step_size: float = 1e-3
    mfvi_steps: int = 5_000
    mfvi_step_size: float = 1e-2
    samples: int = 1_000
    refine_steps: int = 250
    refine_rate: float = 1e-2
    refine_diagonal_rate: float = 1e-3
    members: int = 5


FULL = Config()
QUICK = Config(
    sets=("glass", "ionosphere"),
    splits=SPLITS[:3],
    precisions=(0.1, 1.0, 10.0),
    steps=2_000,
    mfvi_steps=1_000,
    samples=200,
    refine_steps=50,
    members=3,
)
