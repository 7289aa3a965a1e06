"""What every process of a runner needs: a log on stderr, an end with its parent, quick imports, packages' versions."""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
RUNNER_PACKAGES = ("grpcio", "protobuf")


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Args:
        parent: Pid of the process that started this process, which ends at once if that parent has ended already.

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


@contextmanager
def garbage_collection_suspended() -> Iterator[None]:
    """Suspend garbage collection while an engine is imported, and at the end of this process.

    What modules made stays until then, so a search through it finds nothing, and takes a quarter of the CPU time of
    vLLM's import and most of that of its exit. Nor do the collections of a load search it, each for half a second.
    """
    atexit.register(gc.freeze)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions and of the runner's own packages, without those that are not installed."""
    versions = {name: package_version(name) for name in (*names, *RUNNER_PACKAGES)}
    return {name: version for name, version in versions.items() if version is not None}
