"""Read the end of a runner's log."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TAIL_LINES, TAIL_BYTES = 20, 64 * 1024


def log_tail(log_path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log; empty where there is none."""
    with contextlib.suppress(OSError), log_path.open("rb") as log:
        size_bytes = log.seek(0, os.SEEK_END)
        log.seek(max(0, size_bytes - TAIL_BYTES))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    return ""
