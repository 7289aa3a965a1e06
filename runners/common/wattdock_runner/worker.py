"""Hold a copy or a part of a model for the runner that started this process: `python -m wattdock_runner.worker`.

The runner sends orders over a socket pair; a worker ends when the pair closes. Must not know: gRPC.
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
from wattdock_runner.errors import HOST_MEMORY, OutOfMemory, PassCancelled, RunnerFault
from wattdock_runner.process import die_with_parent, log_to_stderr
from wattdock_runner.recorder import PassRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock_runner.arrivals import Tickets
    from wattdock_runner.backend import Backend, LoadOrder, Prompt, Workload
    from wattdock_runner.recorder import Part

log = logging.getLogger(__name__)

# Messages over the pair: the runner's in the first line, the workers' in the second.
LOAD, GENERATE, GO, CANCEL, STOP = "load", "generate", "go", "cancel", "stop"
STAGE, READY, PROGRESS, DONE, FAILED = "stage", "ready", "progress", "done", "failed"
PROGRESS_S = 0.5


class WorkerRecorder(PassRecorder):
    """The record of a worker's share of a pass, which all workers open together.

    Args:
        ready: Called when this worker is ready to begin.
    """

    def __init__(self, ready: Any) -> None:
        super().__init__()
        self._ready = ready
        self._go = threading.Event()

    def go(self, start_ns: int) -> None:
        """Let `open` return: all workers are ready, and the pass began at `start_ns`."""
        self._start_ns = start_ns
        self._go.set()

    def cancel(self) -> None:
        """End the pass early, even before it has begun."""
        self.cancelled.set()
        self._go.set()

    def open(self) -> int:
        """Wait until all workers are ready; return the common start of the pass."""
        self._ready()
        self._go.wait()
        self.check_cancelled()
        return self._start_ns or now_ns()


class Worker:
    """Obeys the runner on this thread; receives its orders on another."""

    def __init__(self, backend: Backend, connection: Connection, tickets: Tickets | None) -> None:
        self._backend, self._connection, self._tickets = backend, connection, tickets
        self._orders: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._recorder: WorkerRecorder | None = None

    def run(self) -> None:
        """Obey orders until STOP."""
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
                # On this thread, so that a cancellation right after finds the recorder.
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
            return FAILED, _shared(fault)
        except MemoryError as error:
            return FAILED, OutOfMemory(str(error) or "host memory is used up", HOST_MEMORY)
        except Exception as error:
            log.error("unexpected error", exc_info=error)
            # The runner's process may lack the class of an engine's error.
            return FAILED, RuntimeError(f"{type(error).__name__}: {error}")

    def _load(self, order: LoadOrder) -> Any:
        return self._backend.load(order, lambda stage: self._say(STAGE, stage))

    def _generate(self, workload: Workload, prompts: Sequence[Prompt]) -> Part:
        recorder = self._recorder
        if recorder is None or recorder.cancelled.is_set():
            raise PassCancelled("the client cancelled the pass")
        over = threading.Event()
        reporter = threading.Thread(target=self._report_progress, args=(recorder, over), daemon=True)
        reporter.start()
        try:
            self._backend.generate(replace(workload, tickets=self._tickets), prompts, recorder)
        finally:
            over.set()
            reporter.join()
        rendered = recorder.rendered_sha256, recorder.template_asked_time
        return recorder.span, recorder.requests, recorder.steps, recorder.serving, *rendered

    def _report_progress(self, recorder: WorkerRecorder, over: threading.Event) -> None:
        while not over.wait(PROGRESS_S):
            self._say(PROGRESS, recorder.tokens_so_far, recorder.requests_finished)

    def _say(self, *words: Any) -> None:
        with self._sending:
            self._connection.send(words)


def _shared(fault: RunnerFault) -> RunnerFault:
    """Return a fault as its nearest class in `errors`: the runner's process may lack a backend's own classes."""
    nearest = next(kind for kind in type(fault).__mro__ if kind.__module__ == RunnerFault.__module__)
    shared: RunnerFault = nearest(str(fault), fault.cause)
    return shared


def main(backend: str, connection: str, tickets: str, cores: str) -> int:
    """Serve the runner at the other end of the pair; return the exit status.

    Args:
        connection: Descriptor of this end of the socket pair.
        tickets: Descriptor of the counter that replicas share; empty without replicas.
        cores: Numbers of the CPU cores to stay on; empty for all.
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
