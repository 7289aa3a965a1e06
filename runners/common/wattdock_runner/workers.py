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
        words = ["--backend", backend, "--connection", str(theirs.fileno())]
        words += [] if tickets is None else ["--tickets", str(tickets)]
        words += ["--cores", ",".join(map(str, place.cores))] if place.cores else []
        descriptors = (theirs.fileno(), *(() if tickets is None else (tickets,)))
        process = subprocess.Popen(
            [sys.executable, "-m", "wattdock_runner.worker", *words],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **place.variables},
            pass_fds=descriptors,
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
        waiting = _Waiting(range(len(orders)), cancelled, self._grace_s)
        while waiting.for_ and not waiting.over:
            for number in self._ready(waiting.for_):
                self._hear(number, waiting, heard)
            if waiting.must_end():
                self.send_all(CANCEL)
        if waiting.for_ or waiting.died:
            # A split model computes every step together: the rest of it is of no use, and may never end.
            self.kill()
        if waiting.failures:
            raise waiting.cause()
        if waiting.for_:
            raise PassCancelled(f"the client cancelled the pass; the {self._called}s were ended")
        return [waiting.answers[number] for number in range(len(orders))]

    def _ready(self, numbers: set[int]) -> list[int]:
        found = wait([self._connections[number] for number in numbers], timeout=POLL_S)
        return [number for number in sorted(numbers) if self._connections[number] in found]

    def _hear(self, number: int, waiting: _Waiting, heard: Callable[[int, str, tuple[Any, ...]], None]) -> None:
        try:
            word, *rest = self._connections[number].recv()
        except (EOFError, OSError):
            waiting.died = True
            waiting.failed(number, WorkerDied(f"{self._name(number)} {self._ending(number)}"))
            return
        if word == DONE:
            waiting.answered(number, rest[0])
        elif word == FAILED:
            kind, message = rest
            # A cancelled worker says so in its own words.
            text = message if kind == PassCancelled.__name__ else f"{self._called} {number}: {message}"
            waiting.failed(number, getattr(errors, kind, RuntimeError)(text))
        else:
            heard(number, word, tuple(rest))

    def _name(self, number: int) -> str:
        return f"{self._called} {number} of {len(self._processes)} (pid {self._processes[number].pid})"

    def _ending(self, number: int) -> str:
        try:
            code = self._processes[number].wait(DEATH_NOTICE_S)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        if code >= 0:
            return f"died: it exited with code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"died: it was killed by {signal.Signals(-code).name}{hint}"

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


class _Waiting:
    """Whom a call still waits for, what came, and when patience ends."""

    def __init__(self, numbers: Sequence[int], cancelled: threading.Event | None, grace_s: float) -> None:
        self.for_ = set(numbers)
        self.answers: dict[int, Any] = {}
        self.failures: list[Exception] = []
        self.died = False
        self._cancelled, self._grace_s = cancelled, grace_s
        self._deadline_s: float | None = None

    def answered(self, number: int, answer: Any) -> None:
        self.for_.discard(number)
        self.answers[number] = answer

    def failed(self, number: int, failure: Exception) -> None:
        self.for_.discard(number)
        self.failures.append(failure)

    def must_end(self) -> bool:
        """Whether the rest must be told to end now; true once."""
        if self._deadline_s is not None or not (self.failures or (self._cancelled and self._cancelled.is_set())):
            return False
        self._deadline_s = time.monotonic() + self._grace_s
        return True

    @property
    def over(self) -> bool:
        """Whether nobody is waited for any longer."""
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    def cause(self) -> Exception:
        """The failure that the others follow from: memory, then a death, then the first that has a name."""
        order = (errors.OutOfMemory, WorkerDied, errors.InvalidRequest, errors.WrongState, errors.ExchangeFailed)
        for kind in order:
            if found := [one for one in self.failures if isinstance(one, kind)]:
                return found[0]
        return next((one for one in self.failures if not isinstance(one, PassCancelled)), self.failures[0])
