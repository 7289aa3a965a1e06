"""Hold a copy or a part of a model for the runner that started this process: `python -m wattdock_runner.worker`.

The runner sends orders over a socket pair and gets an answer to each; `Board` is the memory that both share. A worker
ends with its runner. Must not know: gRPC.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from wattdock_runner.backend import find_backend
from wattdock_runner.errors import HOST_MEMORY, OutOfMemory, PassCancelled, RunnerFault
from wattdock_runner.process import die_with_parent, leave_out_of_garbage_collection, log_to_stderr
from wattdock_runner.recorder import PassRecorder, Progress
from wattdock_runner.tickets import SharedTickets

if TYPE_CHECKING:
    from wattdock_runner.backend import Backend

log = logging.getLogger(__name__)

# Messages over the pair: the runner's in the first line, the workers' in the second.
LOAD, GENERATE, STOP = "load", "generate", "stop"
STAGE, READY, DONE, FAILED = "stage", "ready", "done", "failed"
# Positions of the 8-byte numbers at the beginning of the board, and how many these are.
CANCELLED, MAY_END, TAKEN, COMMON = range(4)


class Board:
    """Memory that a runner shares with its workers.

    Attributes:
        descriptor: File descriptor of the memory, which workers inherit.
        common: Whether the pass is cancelled, whether it may end, and how many requests were taken from the replicas'
            queue.
        progress: The progress of each worker in the pass.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)
        self.common = memoryview(self._memory).cast("Q")[:COMMON]
        places = range(self.common.nbytes, len(self._memory), ctypes.sizeof(Progress))
        self.progress = [Progress.from_buffer(self._memory, place) for place in places]

    @classmethod
    def for_workers(cls, count: int) -> Board:
        """Return the board of so many workers, all zeros."""
        descriptor = os.memfd_create("wattdock-board")
        os.ftruncate(descriptor, COMMON * 8 + count * ctypes.sizeof(Progress))
        return cls(descriptor)

    def clear(self) -> None:
        """Begin a pass: nothing is cancelled, let go, taken or counted."""
        self._memory[:] = bytes(len(self._memory))

    def is_cancelled(self) -> bool:
        """Whether workers shall end the pass early."""
        return bool(self.common[CANCELLED])


class WorkerRecorder(PassRecorder):
    """The record of a worker's share of a pass, which all workers open together; its progress stands on the board."""

    def __init__(self, connection: Connection, board: Board, number: int) -> None:
        super().__init__()
        self._connection, self._board, self.progress = connection, board, board.progress[number]

    def may_end(self) -> bool:
        """Whether the client lets a pass with a minimum duration end."""
        return bool(self._board.common[MAY_END])

    def check_cancelled(self) -> None:
        """Raise `PassCancelled` if the runner ends the pass early."""
        if self._board.is_cancelled():
            raise PassCancelled("the client cancelled the pass")

    def open(self) -> int:
        """Wait until all workers are ready; return the common start of the pass."""
        self._connection.send((READY,))
        self._start_ns = int(self._connection.recv())
        self.check_cancelled()
        return self._start_ns


class Worker:
    """Obeys the runner, one order after the other."""

    def __init__(self, backend: Backend, connection: Connection, board: Board, number: int) -> None:
        self._backend, self._connection, self._board, self._number = backend, connection, board, number
        self._tickets: SharedTickets | None = None

    def run(self) -> None:
        """Obey orders until STOP."""
        while (order := self._connection.recv())[0] != STOP:
            self._connection.send(self._answer(*order))
        self._backend.unload()

    def _answer(self, name: str, *arguments: Any) -> tuple[str, Any]:
        try:
            if name == LOAD:
                [order] = arguments
                # Ranks serve all requests together.
                self._tickets = (
                    None if order.rank else SharedTickets(self._board.descriptor, self._board.common[TAKEN:])
                )
                loaded = self._backend.load(order, lambda stage: self._connection.send((STAGE, stage)))
                leave_out_of_garbage_collection()
                return DONE, loaded
            workload, prompts = arguments
            recorder = WorkerRecorder(self._connection, self._board, self._number)
            self._backend.generate(replace(workload, tickets=self._tickets), prompts, recorder)
            return DONE, recorder.record()
        except RunnerFault as fault:
            # The runner's process may lack a backend's own class of error.
            nearest = next(kind for kind in type(fault).__mro__ if kind.__module__ == RunnerFault.__module__)
            return FAILED, nearest(str(fault), fault.cause)
        except MemoryError as error:
            return FAILED, OutOfMemory(str(error) or "host memory is used up", HOST_MEMORY)
        except Exception as error:
            log.error("unexpected error", exc_info=error)
            return FAILED, RuntimeError(f"{type(error).__name__}: {error}")


def main(backend: str, connection: str, board: str, number: str, cores: str) -> int:
    """Serve the runner at the other end of the pair; return the exit status.

    Args:
        connection, board: Descriptors of this end of the socket pair, and of the board's memory.
        number: This worker's place among the workers, from 0.
        cores: Numbers of the CPU cores to stay on; empty for all.
    """
    log_to_stderr()
    die_with_parent()
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    Worker(find_backend(backend), Connection(int(connection)), Board(int(board)), int(number)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
