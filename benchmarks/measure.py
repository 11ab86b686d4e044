"""Time by interleaved rounds, and extra peak memory of one call.

One thread is timed by the processor's time it used, which other work on the machine does not lengthen; several by the
clock on the wall.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

_CASE_SECONDS = 0.25  # a quick case is repeated within a round until it has run about this long
_MOST_REPEATS = 50
_SLOW_SECONDS = 2.0
_SLOW_BUDGET = 30.0

Call = Callable[[], object]
Samples = list[float | None]  # seconds of one call, one entry a round; None where the case sat out


@dataclass(frozen=True)
class Spread:
    """A median over rounds with its least and greatest value."""

    median: float
    least: float
    greatest: float
    rounds: int


def spread(values: list[float]) -> Spread:
    """Summarise the values of the rounds, of which there must be one at least."""
    return Spread(median(values), min(values), max(values), len(values))


def summary(samples: Samples) -> Spread:
    """Seconds of one call over the rounds the case took part in."""
    return spread([sample for sample in samples if sample is not None])


def ratio(numerator: Samples, denominator: Samples) -> Spread:
    """Quotients within the same round, so that what slows the machine down slows both sides."""
    pairs = zip(numerator, denominator, strict=True)
    return spread([above / below for above, below in pairs if above is not None and below is not None])


def interleave(cases: Mapping[str, Call], rounds: int) -> dict[str, Samples]:
    """Seconds of each case in each round; within a round the cases follow one another.

    Each case runs once beforehand. One that takes over 2 s needs no warming: that run is its first round, and
    it sits out once it has spent 30 s. Quick cases are repeated within a round, their median counts.
    """
    first = {name: _timed(call, repeats=1) for name, call in cases.items()}
    slow = {name for name, seconds in first.items() if seconds > _SLOW_SECONDS}
    repeats = {}
    for name in cases.keys() - slow:
        seconds = _timed(cases[name], repeats=1)
        repeats[name] = max(1, min(_MOST_REPEATS, round(_CASE_SECONDS / seconds)))
    samples: dict[str, Samples] = {name: [] for name in cases}
    spent = {name: first[name] for name in slow}
    for index in range(rounds):
        for name in _rotated(list(cases), index):
            if name not in slow:
                samples[name].append(_timed(cases[name], repeats[name]))
            elif index == 0:
                samples[name].append(first[name])
            elif spent[name] + first[name] <= _SLOW_BUDGET:
                seconds = _timed(cases[name], repeats=1)
                spent[name] += seconds
                samples[name].append(seconds)
            else:
                samples[name].append(None)
    return samples


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def clock() -> Callable[[], float]:
    """What seconds are read from."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _timed(call: Call, repeats: int) -> float:
    now = clock()
    gc.collect()
    gc.disable()
    try:
        seconds = []
        for _ in range(repeats):
            start = now()
            call()
            seconds.append(now() - start)
    finally:
        gc.enable()
    return median(seconds)


@dataclass(frozen=True)
class ExtraMemory:
    """Bytes the process grew by at its peak during a call, and how that was seen."""

    bytes: int
    method: str
    again: int | None = None  # the same of a second call: without what the first one keeps for later


def extra_peak(call: Call) -> ExtraMemory:
    """Peak resident memory during the call less that before it. Linux only; meant for a fresh process."""
    now = clock()
    start = now()
    grown, method = _grown(call)
    if now() - start > _SLOW_SECONDS:
        return ExtraMemory(grown, method)
    return ExtraMemory(grown, method, again=_grown(call)[0])


def _grown(call: Call) -> tuple[int, str]:
    gc.collect()
    # Freed pages that malloc keeps would hide the first of what the call takes.
    ctypes.CDLL(None).malloc_trim(0)
    if _reset_high_water_mark():
        before = _status_bytes("VmRSS")
        call()
        return max(0, _status_bytes("VmHWM") - before), "VmHWM"
    before = _status_bytes("VmRSS")
    with _PeakSampler() as sampler:
        call()
    return max(0, sampler.peak - before), "VmRSS sampled each millisecond"


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    # Some sandboxes accept the write and do nothing.
    return _status_bytes("VmHWM") <= _status_bytes("VmRSS") + 2**20


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no field {field}: peak memory can be measured on Linux only")


class _PeakSampler:
    """Watches resident memory from a thread while a `with` block runs."""

    def __init__(self) -> None:
        self.peak = _status_bytes("VmRSS")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self.peak = max(self.peak, _status_bytes("VmRSS"))

    def __enter__(self) -> _PeakSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = max(self.peak, _status_bytes("VmRSS"))
        self._done.set()
        self._thread.join()
