"""How long a newcomer waits: `make run` in a fresh clone with empty caches, then again, with the parts of the time.

Fetches about 1.5 GB. Two clones: one gets pytorch twice and then vllm, the other vllm alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from overheads import Row, aim, callers_environ

from wattdock.errors import PreflightError
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CACHES = ("UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME", "WATTDOCK_HOME")
# Parts of a run, each with words of the event that ends it; a run may lack some.
PARTS = (
    (".venv", "StudyStarted"),
    ("model", "making "),
    ("environment", "is ready after"),
    ("launch", "RunnerReady"),
    ("imports", "reading weights"),
    ("load", "PassStarted"),
    ("warm-up", '"pass 1/'),
    ("passes and result", "ResultStored"),
)
FIRST_TOKEN = "first token"


def first_result() -> list[Row]:
    """Seconds to a result, or to the first token, of a run without a file; what they are made of; the load average."""
    with tempfile.TemporaryDirectory() as scratch:
        both, alone = Path(scratch) / "both", Path(scratch) / "alone"
        for clone in (both, alone):
            subprocess.run(["git", "clone", "--quiet", REPO, clone], check=True)
        return [
            _row("first result, empty caches, pytorch", both, "pytorch", most_s=75),
            _row(f"second run, {FIRST_TOKEN}, pytorch", both, "pytorch", most_s=15),
            _row("first result of vllm after pytorch's", both, "vllm"),
            _row("first result, empty caches, vllm", alone, "vllm", most_s=100),
        ]


def _row(what: str, clone: Path, backend: str, *, most_s: float | None = None) -> Row:
    """Run `make run` in a clone whose caches lie beside it.

    Raises:
        PreflightError: It failed; holds its last line.
    """
    environ = callers_environ() | {name: f"{clone}-{name}" for name in CACHES}
    load, began_s = os.getloadavg()[0], time.monotonic()
    command = ["make", "--silent", "run", f"BACKEND={backend}", "ARGS=--progress-json"]
    with subprocess.Popen(
        command, cwd=clone, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as make:
        assert make.stdout is not None
        lines = [(time.monotonic() - began_s, line) for line in make.stdout]
    if make.returncode:
        raise PreflightError(f"make run BACKEND={backend} in a fresh clone failed: {lines[-1][1].strip()}")
    taken_s = parts(lines)
    figure_s = taken_s[FIRST_TOKEN] if FIRST_TOKEN in what else lines[-1][0]
    made_of = ", ".join(f"{part} {seconds:.1f}" for part, seconds in taken_s.items() if part != FIRST_TOKEN)
    return Row(what, f"{figure_s:.1f} s", f"1 run, load average {load:.1f}: {made_of}", aim(most_s, "s", figure_s))


def parts(lines: Iterable[tuple[float, str]]) -> Mapping[str, float]:
    """Return how long each part of a run took, and when the first token came, in seconds.

    Args:
        lines: Seconds since the start, and a line of output.
    """
    taken_s: dict[str, float] = {}
    begun_s = 0.0
    for at_s, line in lines:
        if not line.startswith("{"):
            continue
        if ended := next((part for part, words in PARTS if part not in taken_s and words in line), None):
            taken_s[ended], begun_s = at_s - begun_s, at_s
        if json.loads(line).get("output_tokens"):
            taken_s.setdefault(FIRST_TOKEN, at_s)
    return taken_s
