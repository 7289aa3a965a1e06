"""What each process of a runner does about itself first: log to stderr, and end with whoever started it."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Args:
        parent: The pid of who started it; where that has ended already, so does this process, at once.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        log.warning("cannot tie this process to its parent: %s", os.strerror(ctypes.get_errno()))
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def log_to_stderr() -> None:
    """Log to stderr with UTC times."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
