"""Serve a model from several processes where a load asks for it: replicas, or ranks that share the model.

Every other load goes to the backend in this process. Must not know: engines.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import ExchangeFailed, InvalidRequest, OutOfMemory, PassCancelled, WorkerDied, WrongState
from wattdock_runner.recorder import merged
from wattdock_runner.values import REPLICAS, Rank
from wattdock_runner.worker import CANCELLED, DONE, FAILED, GENERATE, LOAD, MAY_END, READY, STOP, Board

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

    from wattdock_runner.backend import Backend
    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import LoadedModel, LoadOrder, Prompt, Report, Workload

# A replica ends at its next step; ranks wait for ever for a rank that has gone.
REPLICAS_GRACE_S, RANKS_GRACE_S = 60.0, 2.0
# All ranks are on one host, and a container may have no other interface.
ON_THIS_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
POLL_S = 0.2
DEATH_NOTICE_S = 5.0
STOP_GRACE_S = 20.0
# Kinds of failure, causes before their consequences.
CAUSES = (OutOfMemory, WorkerDied, InvalidRequest, WrongState, ExchangeFailed, Exception)


class Workers:
    """Processes that each hold a copy or a part of a model.

    Args:
        orders: What each process loads.

    Attributes:
        role: A worker's name in messages.
        grace_s: How long workers may take to end once a worker has failed or the pass is cancelled; then all are
            killed.
        reporting: Number of workers, from the first, whose tokens and whose records of a pass count.
        split: How the workers share the work, beside what the first says of itself.
    """

    role: str
    grace_s: float
    reporting: int
    split: Mapping[str, Any] = {}

    def __init__(self, backend: str, orders: Sequence[LoadOrder], variables: Sequence[Mapping[str, str]]) -> None:
        self._orders, self._board = orders, Board.for_workers(len(orders))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._ready: list[Connection] = []
        all_cores = sorted(os.sched_getaffinity(0))
        share = len(all_cores) // len(orders)
        for number, (order, added) in enumerate(zip(orders, variables, strict=True)):
            ours, theirs = Pipe()
            descriptors = (theirs.fileno(), self._board.descriptor)
            # No cores are named where a GPU computes, or where there are too few.
            cores = [] if order.gpu_uuids else all_cores[number * share : (number + 1) * share]
            words = (*map(str, descriptors), str(number), ",".join(map(str, cores)))
            process = subprocess.Popen(
                [sys.executable, "-m", "wattdock_runner.worker", backend, *words],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **added},
                pass_fds=descriptors,
            )
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def load(self, report: Report) -> LoadedModel:
        """Load in all processes at once, and return what they hold together."""
        models: list[LoadedModel] = self._call([(LOAD, order) for order in self._orders], report=report)
        visible = dict.fromkeys(uuid for model in models for uuid in model.visible_gpu_uuids)
        used = {uuid for model in models for uuid in model.used_gpu_uuids}
        devices: dict[str, int] = {}
        for model in models:
            devices |= model.parallelism.get("devices", {})
        return replace(
            models[0],
            visible_gpu_uuids=tuple(visible),
            used_gpu_uuids=tuple(uuid for uuid in visible if uuid in used),
            parallelism={**models[0].parallelism, **self.split, "devices": devices},
            warnings=tuple(dict.fromkeys(warning for model in models for warning in model.warnings)),
        )

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run a pass in all processes from a common start, and record it."""
        self._board.clear()
        recorder.parts = self._board.progress[: self.reporting]
        self._ready = []
        orders = [(GENERATE, workload, list(prompts))] * len(self._orders)
        parts = self._call(orders, recorder=recorder)
        recorder.adopt(merged(parts) if self.reporting > 1 else parts[0])

    def _call(
        self, orders: Sequence[tuple[Any, ...]], *, report: Report | None = None, recorder: PassRecorder | None = None
    ) -> list[Any]:
        """Send each worker its order and return the workers' answers.

        Args:
            report: Gets the stages of the first worker's load.
            recorder: Records the pass that all workers begin together once they are ready.

        Raises:
            RunnerFault: A worker's error, `WorkerDied` or `PassCancelled`.
            WrongState: An earlier failure ended the workers.
        """
        if not self._processes:
            raise WrongState(f"the {self.role}s were ended by an earlier failure; Unload, then Load again")
        for connection, order in zip(self._connections, orders, strict=True):
            _send(connection, order)
        waiting, answers, failures = set(range(len(orders))), dict[int, Any](), list[Exception]()
        deadline_s = math.inf
        while waiting and time.monotonic() < deadline_s:
            readable = wait([self._connections[number] for number in waiting], timeout=POLL_S)
            for number in [number for number in sorted(waiting) if self._connections[number] in readable]:
                word, *rest = self._receive(number)
                if word == DONE:
                    answers[number] = rest[0]
                elif word == FAILED:
                    failures.append(rest[0])
                elif report and number == 0:
                    # All workers load in about the same time.
                    report(*rest)
                waiting -= {number} if word in (DONE, FAILED) else set()
            if deadline_s == math.inf and (failures or (recorder and recorder.cancelled.is_set())):
                deadline_s = time.monotonic() + self.grace_s
                self._board.common[CANCELLED] = 1
            if recorder:
                self._follow(recorder)
        self._require_answers(failures, is_waiting=bool(waiting))
        return [answers[number] for number in range(len(orders))]

    def _require_answers(self, failures: Sequence[Exception], *, is_waiting: bool) -> None:
        """Raise the failure that all others follow from; kill workers that would never answer."""
        if is_waiting or any(isinstance(failure, WorkerDied) for failure in failures):
            # Ranks compute every step together: those that still run are of no use, and may never end.
            self._kill()
        # A worker that was asked to end its pass does not know why.
        causes = [failure for failure in failures if not isinstance(failure, PassCancelled)] or failures
        if causes:
            raise next(failure for kind in CAUSES for failure in causes if isinstance(failure, kind))
        if is_waiting:
            raise PassCancelled(f"the client cancelled the pass; the {self.role}s were ended")

    def _follow(self, recorder: PassRecorder) -> None:
        """Begin a pass once all workers are ready, and tell them when it may end."""
        self._board.common[MAY_END] = recorder.may_end()
        # Workers that wait for the others learn only now that the pass is cancelled.
        if len(self._ready) == len(self._connections) or (self._ready and self._board.is_cancelled()):
            start_ns = recorder.open()
            for connection in self._ready:
                _send(connection, start_ns)
            self._ready = []

    def _receive(self, number: int) -> Sequence[Any]:
        """Return a worker's next message, a failure with the worker's name; its death is a failure."""
        process, connection = self._processes[number], self._connections[number]
        try:
            word, *rest = connection.recv()
        except (EOFError, OSError):
            name = f"{self.role} {number} of {len(self._processes)} (pid {process.pid})"
            try:
                code = process.wait(DEATH_NOTICE_S)
            except subprocess.TimeoutExpired:
                return FAILED, WorkerDied(f"{name} stopped answering")
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            how = f"it exited with code {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}{hint}"
            return FAILED, WorkerDied(f"{name} died: {how}")
        if word == READY:
            self._ready.append(connection)
        if word == FAILED and not isinstance(rest[0], PassCancelled):
            named = type(rest[0])(f"{self.role} {number}: {rest[0]}")
            named.__dict__.update(vars(rest[0]))
            return FAILED, named
        return word, *rest

    def end(self) -> None:
        """Ask the workers to unload and end, kill those that take too long, and free the memory that they share."""
        for connection in self._connections:
            _send(connection, (STOP,))
        deadline_s = time.monotonic() + STOP_GRACE_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        self._kill()
        os.close(self._board.descriptor)

    def _kill(self) -> None:
        """Kill the workers, and return when they have ended."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []


class Replicas(Workers):
    """Copies of a model that take requests from a common queue, each on a GPU or a share of the CPU's cores."""

    role, grace_s = "replica", REPLICAS_GRACE_S

    def __init__(self, backend: str, order: LoadOrder, count: int) -> None:
        _require_gpu_for_each(order, count, REPLICAS, self.role)
        self.reporting, self.split = count, {"kind": "data", REPLICAS: count}
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        # A container shows its GPUs without that variable.
        devices = visible if len(visible) >= count else [str(number) for number in range(count)]
        orders = [replace(order, gpu_uuids=order.gpu_uuids[number : number + 1]) for number in range(count)]
        variables = [{"CUDA_VISIBLE_DEVICES": device if order.gpu_uuids else ""} for device in devices[:count]]
        super().__init__(backend, orders, variables)

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Give each replica its share of the requests in flight; a replica with room takes the next request."""
        share = replace(workload, in_flight=workload.in_flight // self.reporting)
        super().generate(share, prompts, recorder)


class Ranks(Workers):
    """Processes that hold a model together and compute every step together; the record of the first counts."""

    role, grace_s, reporting = "rank", RANKS_GRACE_S, 1

    def __init__(self, backend: str, order: LoadOrder, count: int) -> None:
        _require_gpu_for_each(order, count, "tp_size", self.role)
        # No file on any disk, which a killed runner would leave behind.
        self._meeting = os.memfd_create("wattdock-meeting")
        meeting = f"/proc/{os.getpid()}/fd/{self._meeting}"
        orders = [replace(order, rank=Rank(number, count, meeting)) for number in range(count)]
        super().__init__(backend, orders, [ON_THIS_HOST | os.environ] * count)

    def end(self) -> None:
        """End the ranks, and remove their meeting place."""
        super().end()
        os.close(self._meeting)


def start_workers(backend: Backend, order: LoadOrder) -> Workers | None:
    """Start the processes that an order asks for; None where the backend loads in this process.

    Raises:
        InvalidRequest: The order asks for a number of processes that cannot be.
    """
    if order.replicas > 1:
        return Replicas(backend.name, order, order.replicas)
    ranks = backend.ranks(order)
    return Ranks(backend.name, order, ranks) if ranks > 1 else None


def _require_gpu_for_each(order: LoadOrder, count: int, argument: str, role: str) -> None:
    if order.gpu_uuids and len(order.gpu_uuids) != count:
        gpus = len(order.gpu_uuids)
        raise InvalidRequest(f"{argument} is {count}, and there are {gpus} GPUs; each {role} takes one")


def _send(connection: Connection, message: object) -> None:
    """Send a worker a message; a worker that has ended is noticed where its answer is missing."""
    with contextlib.suppress(OSError):
        connection.send(message)
