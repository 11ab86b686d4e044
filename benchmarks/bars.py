"""What linlap is meant to reach on these measurements."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers import Outputs, Structure

AGREEMENT = 1e-10  # greatest relative error to the default peer in float64
MANY_OUTPUTS = 6  # variances of a last layer's thousand outputs, in times of the layer's own matrix product
EVIDENCE = 100  # times the speed of the peer's 100 steps, for a full covariance
VALIDATION = {"10 precisions": 2.0, "50 precisions": 5.0}  # in times of one prediction
REFINEMENT, REFINEMENT_GIB = 20, 4  # times the speed of the same steps over weights; memory at scale
REFINEMENT_NLJ = 1.0  # the linear model's negative log joint density after refining at scale, in times of before
IMPORT_RATIO = 1.3  # importing linlap, in times of importing torch


@dataclass(frozen=True)
class LatentBar:
    """At least `faster` times the speed of the default peer, at most this share of its extra peak memory and
    this many floors (one forward and C backward passes)."""

    faster: float
    memory_share: float
    floors: float


LATENT: dict[tuple[str, Structure], LatentBar] = {
    ("mlp", "Kron"): LatentBar(800, 1 / 100, 1.5),
    ("mlp", "Diagonal"): LatentBar(200, 1 / 60, 1.2),
    ("3c3d", "Kron"): LatentBar(55, 1 / 12, 2),
    ("3c3d", "Diagonal"): LatentBar(20, 1 / 12, 2),
    ("allcnn", "Kron"): LatentBar(12, 1 / 6, 3),
    ("transformer", "Kron"): LatentBar(11, 1 / 15, 3),
}

# At least this many times the speed of the fastest peer backend.
FIT: dict[tuple[str, Structure], float] = {
    ("mlp", "Kron"): 1.5,
    ("mlp", "Diagonal"): 1.5,
    ("3c3d", "Kron"): 1.0,
    ("3c3d", "Diagonal"): 1.0,
    ("allcnn", "Kron"): 1.0,
    ("allcnn", "Diagonal"): 1.0,
}


@dataclass(frozen=True)
class GPBar:
    """At least this many times the speed of the fastest peer backend in fit and prediction, and at most this share
    of its extra peak memory."""

    fit: float
    latent: float
    memory_share: float | None = None


GP: dict[tuple[str, Outputs], GPBar] = {
    ("narrow-mlp", "independent"): GPBar(600, 1500, 1 / 5),
    ("narrow-mlp", "coupled"): GPBar(130, 200, 1 / 5),
    ("3c3d", "independent"): GPBar(10, 10),
    ("3c3d", "coupled"): GPBar(10, 10),
}


@dataclass(frozen=True)
class LargeGPBar:
    """At most this long for fit and predictions together, and this much memory of the whole process."""

    seconds: float
    gib: float


LARGE_GP: dict[Outputs, LargeGPBar] = {"independent": LargeGPBar(120, 6), "coupled": LargeGPBar(720, 16)}
