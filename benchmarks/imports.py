"""How long `import linlap` takes against `import torch`, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Samples, ratio, summary

_CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
_ROOT = Path(__file__).parents[1]


def measure(rounds: int) -> dict[str, Any]:
    """Seconds of both imports over interleaved rounds, and their quotient; or why one failed."""
    samples: dict[str, Samples] = {"torch": [], "linlap": []}
    for index in range(rounds + 1):
        for name, values in samples.items():
            command = [sys.executable, "-c", _CODE.format(name)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, check=False)
            if done.returncode:
                return {"failed": done.stderr.strip().splitlines()[-1]}
            if index:  # the first round fills the disk cache
                values.append(float(done.stdout))
    return {
        "seconds": {name: asdict(summary(values)) for name, values in samples.items()},
        "ratio": asdict(ratio(samples["linlap"], samples["torch"])),
    }
