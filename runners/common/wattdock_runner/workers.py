"""Start processes that hold copies or parts of a model, have them do one thing together, and end them.

Knows neither what they hold nor how their answers belong together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from wattdock_runner import errors
from wattdock_runner.errors import PassCancelled, WorkerDied, WrongState
from wattdock_runner.worker import CANCEL, DONE, FAILED, STOP

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

log = logging.getLogger(__name__)

POLL_S = 0.2
DEATH_NOTICE_S = 5.0
STOP_GRACE_S = 20.0


@dataclass(frozen=True)
class Place:
    """Where one worker runs: what its environment has on top of ours, and the CPU cores it stays on (empty: all)."""

    variables: Mapping[str, str]
    cores: tuple[int, ...] = ()


class Workers:
    """Equal processes of one backend, in order.

    Args:
        called: What one of them is called in messages: "replica" or "rank".
        tickets: Descriptor of the queue's counter, where they take from one.
        grace_s: How long the others may take to come to an end once one has failed, or the pass is cancelled; after
            that all are killed.
    """

    def __init__(
        self, backend: str, places: Sequence[Place], *, called: str, grace_s: float, tickets: int | None = None
    ) -> None:
        self._called, self._grace_s = called, grace_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for place in places:
            self._start(backend, place, tickets)

    def _start(self, backend: str, place: Place, tickets: int | None) -> None:
        ours, theirs = Pipe()
        counter = () if tickets is None else (tickets,)
        words = (backend, str(theirs.fileno()), "".join(map(str, counter)), ",".join(map(str, place.cores)))
        process = subprocess.Popen(
            [sys.executable, "-m", "wattdock_runner.worker", *words],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **place.variables},
            pass_fds=(theirs.fileno(), *counter),
        )
        theirs.close()
        self._processes.append(process)
        self._connections.append(ours)

    @property
    def pids(self) -> tuple[int, ...]:
        """Their process ids, in order."""
        return tuple(process.pid for process in self._processes)

    def send_all(self, *words: Any) -> None:
        """Say the same to all of them; one that has ended is found when it is waited for."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(words)

    def call(
        self,
        orders: Sequence[tuple[Any, ...]],
        heard: Callable[[int, str, tuple[Any, ...]], None],
        cancelled: threading.Event | None = None,
    ) -> list[Any]:
        """Give each worker its order and return their answers.

        Args:
            heard: Called with a worker's number, and what it says before its answer.
            cancelled: Set, it ends the work early.

        Raises:
            RunnerFault: What a worker raised, or `WorkerDied`, or `PassCancelled`.
            WrongState: They were ended by an earlier failure.
        """
        if not self._processes:
            raise WrongState(f"the {self._called}s were ended by an earlier failure; Unload, then Load again")
        for connection, order in zip(self._connections, orders, strict=True):
            with contextlib.suppress(OSError):
                connection.send(order)
        waiting, answers, failures = set(range(len(orders))), dict[int, Any](), list[Exception]()
        deadline_s: float | None = None
        while waiting and (deadline_s is None or time.monotonic() < deadline_s):
            for number in self._ready(waiting):
                word, *rest = self._receive(number)
                if word not in (DONE, FAILED):
                    heard(number, word, tuple(rest))
                    continue
                waiting.discard(number)
                if word == DONE:
                    answers[number] = rest[0]
                else:
                    failures.append(self._failure(number, *rest))
            if deadline_s is None and (failures or (cancelled and cancelled.is_set())):
                deadline_s = time.monotonic() + self._grace_s
                self.send_all(CANCEL)
        if waiting or any(isinstance(failure, WorkerDied) for failure in failures):
            # A split model computes every step together: the rest of it is of no use, and may never end.
            self.kill()
        if failures:
            raise _cause(failures)
        if waiting:
            raise PassCancelled(f"the client cancelled the pass; the {self._called}s were ended")
        return [answers[number] for number in range(len(orders))]

    def _ready(self, numbers: set[int]) -> list[int]:
        found = wait([self._connections[number] for number in numbers], timeout=POLL_S)
        return [number for number in sorted(numbers) if self._connections[number] in found]

    def _receive(self, number: int) -> Sequence[Any]:
        """Return what a worker says; its death is a failure."""
        try:
            words: Sequence[Any] = self._connections[number].recv()
        except (EOFError, OSError):
            process = self._processes[number]
            name = f"{self._called} {number} of {len(self._processes)} (pid {process.pid})"
            return FAILED, WorkerDied.__name__, f"{name} {_ending(process)}"
        return words

    def _failure(self, number: int, kind: str, message: str) -> Exception:
        # A cancelled worker says so in its own words, and a dead one is named already.
        is_named = kind in (PassCancelled.__name__, WorkerDied.__name__)
        failure: Exception = getattr(errors, kind, RuntimeError)(
            message if is_named else f"{self._called} {number}: {message}"
        )
        return failure

    def stop(self) -> None:
        """Have them free what they hold and end; whoever takes too long is killed."""
        self.send_all(STOP)
        deadline_s = time.monotonic() + STOP_GRACE_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End them all now, and return when they have ended."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Say how a process ended that does not answer any more."""
    try:
        code = process.wait(DEATH_NOTICE_S)
    except subprocess.TimeoutExpired:
        return "stopped answering"
    if code >= 0:
        return f"died: it exited with code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"died: it was killed by {signal.Signals(-code).name}{hint}"


def _cause(failures: Sequence[Exception]) -> Exception:
    """Return the failure that the others follow from: memory, then a death, then the first that has a name."""
    order = (errors.OutOfMemory, WorkerDied, errors.InvalidRequest, errors.WrongState, errors.ExchangeFailed)
    for kind in order:
        if found := [failure for failure in failures if isinstance(failure, kind)]:
            return found[0]
    return next((failure for failure in failures if not isinstance(failure, PassCancelled)), failures[0])
