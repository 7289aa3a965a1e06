"""Hold a copy or a part of a model for the runner that started this process: `python -m wattdock_runner.worker`.

It obeys the runner over a socket pair and ends when that closes. Knows no gRPC.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from wattdock_runner.arrivals import SharedTickets
from wattdock_runner.backend import find_backend
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import OutOfMemory, PassCancelled, RunnerFault
from wattdock_runner.process import die_with_parent, log_to_stderr
from wattdock_runner.recorder import PassRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock_runner.arrivals import Tickets
    from wattdock_runner.backend import Backend, LoadOrder, Prompt, Workload
    from wattdock_runner.clock import Span
    from wattdock_runner.recorder import RequestRecord

log = logging.getLogger(__name__)

# Messages over the pair: the runner's first, then its workers'.
LOAD, GENERATE, GO, CANCEL, STOP = "load", "generate", "go", "cancel", "stop"
STAGE, READY, PROGRESS, DONE, FAILED = "stage", "ready", "progress", "done", "failed"
PROGRESS_S = 0.5


class WorkerRecorder(PassRecorder):
    """The record of one worker's share of a pass, which all workers open together.

    Args:
        ready: Says that this worker could begin.
    """

    def __init__(self, ready: Any) -> None:
        super().__init__()
        self._ready = ready
        self._go = threading.Event()

    def go(self, start_ns: int) -> None:
        """Let `open` return: every worker is ready, and the pass began at `start_ns`."""
        self._start_ns = start_ns
        self._go.set()

    def cancel(self) -> None:
        """End the pass early, even where it has not begun."""
        self.cancelled.set()
        self._go.set()

    def open(self) -> int:
        """Wait until every worker is ready; return the instant that the pass began at, the same for all."""
        self._ready()
        self._go.wait()
        self.check_cancelled()
        return self._start_ns or now_ns()


class Worker:
    """Does what the runner says, on this thread; hears it on another."""

    def __init__(self, backend: Backend, connection: Connection, tickets: Tickets | None) -> None:
        self._backend, self._connection, self._tickets = backend, connection, tickets
        self._orders: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._recorder: WorkerRecorder | None = None

    def run(self) -> None:
        """Obey until told to stop."""
        threading.Thread(target=self._listen, daemon=True).start()
        while (order := self._orders.get())[0] != STOP:
            self._say(*self._answer(*order))
        self._backend.unload()

    def _listen(self) -> None:
        while True:
            try:
                order = self._connection.recv()
            except (EOFError, OSError):
                # The runner has ended.
                os._exit(1)
            if order[0] == GENERATE:
                # Here, so that a cancellation that follows at once finds it.
                self._recorder = WorkerRecorder(lambda: self._say(READY))
            if order[0] == GO and self._recorder:
                self._recorder.go(order[1])
            elif order[0] == CANCEL:
                if self._recorder:
                    self._recorder.cancel()
            else:
                self._orders.put(order)

    def _answer(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        work: Callable[..., Any] = self._load if name == LOAD else self._generate
        try:
            return DONE, work(*arguments)
        except RunnerFault as fault:
            return FAILED, fault
        except MemoryError as error:
            return FAILED, OutOfMemory(str(error) or "host memory is used up")
        except Exception as error:
            log.error("unexpected error", exc_info=error)
            # The runner's process may lack the class of an engine's error.
            return FAILED, RuntimeError(f"{type(error).__name__}: {error}")

    def _load(self, order: LoadOrder) -> Any:
        return self._backend.load(order, lambda stage: self._say(STAGE, stage))

    def _generate(self, workload: Workload, prompts: Sequence[Prompt]) -> tuple[Span, Sequence[RequestRecord]]:
        recorder = self._recorder
        if recorder is None or recorder.cancelled.is_set():
            raise PassCancelled("the client cancelled the pass")
        over = threading.Event()
        telling = threading.Thread(target=self._tell, args=(recorder, over), daemon=True)
        telling.start()
        try:
            self._backend.generate(replace(workload, tickets=self._tickets), prompts, recorder)
        finally:
            over.set()
            telling.join()
        return recorder.span, recorder.requests

    def _tell(self, recorder: WorkerRecorder, over: threading.Event) -> None:
        while not over.wait(PROGRESS_S):
            self._say(PROGRESS, recorder.tokens_so_far, recorder.requests_finished)

    def _say(self, *words: Any) -> None:
        with self._sending:
            self._connection.send(words)


def main(backend: str, connection: str, tickets: str, cores: str) -> int:
    """Serve the runner on the other side of the pair; return the exit status.

    Args:
        connection: Descriptor of a socket pair's end.
        tickets: Descriptor of the counter that replicas share; empty where there is none.
        cores: CPU cores to stay on, by number; empty is all.
    """
    log_to_stderr()
    die_with_parent()
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    shared = SharedTickets(int(tickets)) if tickets else None
    Worker(find_backend(backend), Connection(int(connection)), shared).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
