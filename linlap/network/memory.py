"""How much memory there is, and how much a batch will take: worked out before the work starts."""

from __future__ import annotations

import os

import torch

from linlap.errors import MemoryBudgetError


def available(device: torch.device) -> int:
    """Bytes free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def require(size: int, device: torch.device, what: str, instead: str) -> None:
    """An error with the number, before anything is allocated, if `size` bytes are not there."""
    free = available(device)
    if size > free:
        raise MemoryBudgetError(
            f"{what} needs about {readable(size)}, and {device} has {readable(free)} free. {instead}"
        )


def default_budget(device: torch.device) -> int:
    """What a batch may take: a quarter of what is free, and on a CPU no more than keeps it responsive."""
    free = available(device) // 4
    return free if device.type == "cuda" else min(free, 1 << 30)
