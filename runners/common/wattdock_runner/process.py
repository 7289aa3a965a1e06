"""What every process of a runner needs: a log on stderr, an end with its parent, quick imports, packages' versions."""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import os
import select
import signal
import sys
import time
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
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


def descendants(pid: int, words: bytes = b"", *, children_only: bool = False) -> list[int]:
    """Return all processes below `pid` whose commands hold `words`."""
    pids: list[int] = []
    ended = suppress(FileNotFoundError, ProcessLookupError)
    with ended:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, file.read_text(encoding="ascii").split()):
                with ended:
                    if words in Path(f"/proc/{child}/cmdline").read_bytes():
                        pids.append(child)
                pids += [] if children_only else descendants(child, words)
    return pids


class Processes:
    """Handles of processes, which mean no other process once these have ended."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._handles: list[int] = []
        for pid in pids:
            with suppress(ProcessLookupError):
                self._handles.append(os.pidfd_open(pid))

    def all_live(self) -> bool:
        """Return whether none of them has ended."""
        return not any(_has_ended(handle) for handle in self._handles)

    def end(self, grace_s: float = 0.0) -> None:
        """End those that still live after `grace_s`, and let go of all."""
        deadline_s = time.monotonic() + grace_s
        for handle in self._handles:
            if not _has_ended(handle, max(0.0, deadline_s - time.monotonic())):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._handles.clear()


def _has_ended(handle: int, wait_s: float = 0.0) -> bool:
    watch = select.poll()
    watch.register(handle, select.POLLIN)
    return bool(watch.poll(wait_s * 1000))


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


def leave_out_of_garbage_collection() -> None:
    """Keep all that was made so far, by a load or for a pass, out of later searches for garbage.

    A full one takes tenths of a second in the middle of a pass, of an engine's own process as of a server's client, and
    is the likely reason why SGLang's client on an H200 stood still for 0.5 s. vLLM does the same in its own processes
    once it has started. With 3,200 prompts of 6,000 ids vLLM on an H200 stood still for 0.13 to 0.21 s every 10 s, most
    likely for it: 1.7 % of its time, 0.4 to 0.5 % of its joules.
    """
    gc.collect()
    gc.freeze()


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
