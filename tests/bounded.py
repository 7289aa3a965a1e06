"""Run a few lines of Python that may take so much memory and so much computing, as the kernel counts both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
FOLDERS = ("coordinator", "proto", "runners/common", "runners/llamacpp", "tests")
LIMITED = """
import resource
def limited(megabytes, seconds):
    size = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
    most_bytes = 1024 * int(size.split()[1]) + megabytes * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
"""


def within_bounds(imports: str, lines: str, *words: str | Path, megabytes: int = 300, seconds: int = 60) -> str:
    """Return what the lines print; `imports` take what they take, the lines no more than this beside it."""
    script = f"{LIMITED}\nimport sys\n{imports}\nlimited({megabytes}, {seconds})\n{lines}"
    path = os.pathsep.join(str(REPO / folder) for folder in FOLDERS)
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=20 * seconds,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout
