"""One measurement in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LONGEST = 900  # seconds a process may take
_ROOT = Path(__file__).parents[1]
_LAST_LINE = 300  # characters kept of the reason a process gives for failing


class JobFailed(Exception):
    """A measuring process ended without a result; its last words are the message."""


def run_fresh(module: str, job: dict[str, Any], threads: int, longest: int = LONGEST) -> dict[str, Any]:
    """What `python -m MODULE JOB.json RESULT.json` writes, limited to a number of threads."""
    limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with tempfile.TemporaryDirectory() as folder:
        job_path, result_path = Path(folder, "job.json"), Path(folder, "result.json")
        job_path.write_text(json.dumps(job))
        try:
            done = subprocess.run(
                [sys.executable, "-m", module, str(job_path), str(result_path)],
                capture_output=True,
                text=True,
                timeout=longest,
                cwd=_ROOT,
                env=os.environ | limits,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise JobFailed(f"took over {longest} s") from None
        if done.returncode:
            words = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
            raise JobFailed(words[-1][:_LAST_LINE])
        return json.loads(result_path.read_text())


def say(what: str) -> None:
    """Progress, apart from the tables."""
    print(f"  {what}", file=sys.stderr, flush=True)
