"""Run the engine's work on one thread of its own, one job at a time.

Knows no backend and no gRPC.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_runner.errors import WrongState

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

CANCELLED_JOB_GRACE_S = 60.0
# A client that cancels a call and makes the next one at once may be heard in the other order.
CANCEL_ARRIVAL_S = 2.0
POLL_S = 0.02


@dataclass(frozen=True)
class _Job:
    name: str
    future: Future[Any]
    cancelled: threading.Event


class EngineThread:
    """One thread, so that engines with thread-local state always see the same one."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._is_ending = False

    def require_idle(self) -> None:
        """Return when nothing runs; a job that was cancelled, or is within two seconds, is waited for.

        Raises:
            WrongState: A job runs that nobody cancelled, or a cancelled one does not end.
        """
        if (job := self._job) is None:
            return
        deadline_s = time.monotonic() + CANCEL_ARRIVAL_S
        while not (job.cancelled.is_set() or job.future.done()) and time.monotonic() < deadline_s:
            wait([job.future], timeout=POLL_S)
        if job.cancelled.is_set():
            wait([job.future], timeout=CANCELLED_JOB_GRACE_S)
        _require_done(job)

    def submit(self, name: str, work: Callable[[], T], cancelled: threading.Event) -> Future[T]:
        """Start `work`; `cancelled` is the event that asks it to end early.

        Raises:
            WrongState: Another job is running, or the runner ends.
        """
        self.require_idle()
        with self._lock:
            if self._is_ending:
                raise WrongState("this runner was asked to stop")
            # Two may have waited for the same job.
            if self._job is not None:
                _require_done(self._job)
            future = self._executor.submit(work)
            self._job = _Job(name, future, cancelled)
        return future

    def end(self, last: Callable[[], None], timeout_s: float) -> bool:
        """Take no job any more, ask a running one to end, do `last`; return whether each ended within `timeout_s`."""
        with self._lock:
            self._is_ending = True
        if self._job is not None:
            self._job.cancelled.set()
            if wait([self._job.future], timeout=timeout_s).not_done:
                return False
        return not wait([self._executor.submit(last)], timeout=timeout_s).not_done


def _require_done(job: _Job) -> None:
    if not job.future.done():
        state = "being cancelled" if job.cancelled.is_set() else "running"
        raise WrongState(f"this runner does one thing at a time, and {job.name} is still {state}")
