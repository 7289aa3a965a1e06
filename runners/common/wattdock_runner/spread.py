"""Serve a backend from several processes where a load asks for it: replicas, or ranks that share a model.

Every other load goes to the backend in this process. Must not know: engines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from wattdock_runner.arguments import Argument
from wattdock_runner.arrivals import SharedTickets, open_counter
from wattdock_runner.backend import Arrival, Backend, Rank
from wattdock_runner.errors import ExchangeFailed, InvalidRequest, OutOfMemory, PassCancelled, WorkerDied, WrongState
from wattdock_runner.worker import CANCEL, DONE, FAILED, GENERATE, GO, LOAD, PROGRESS, READY, STAGE, STOP

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from wattdock_runner.backend import LoadedModel, LoadOrder, Prompt, Report, Workload
    from wattdock_runner.recorder import PassRecorder

REPLICAS = "data_parallel_size"
# A replica ends at its next step; ranks wait for ever for a rank that has gone.
REPLICAS_GRACE_S, RANKS_GRACE_S = 60.0, 2.0
# All ranks are on one host, and a container may have no other interface.
ON_THIS_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
POLL_S = 0.2
DEATH_NOTICE_S = 5.0
STOP_GRACE_S = 20.0


@dataclass(frozen=True)
class Place:
    """Where a worker runs: variables added to its environment, and its CPU cores (empty: all)."""

    variables: Mapping[str, str]
    cores: tuple[int, ...] = ()


class Workers:
    """Worker processes of a backend, in order.

    Args:
        role: A worker's name in messages: "replica" or "rank".
        tickets: Descriptor of the counter of a shared queue; None without such a queue.
        grace_s: How long workers may take to end once a worker has failed or the pass is cancelled; then all are
            killed.
    """

    def __init__(
        self, backend: str, places: Sequence[Place], *, role: str, grace_s: float, tickets: int | None = None
    ) -> None:
        self._role, self._grace_s = role, grace_s
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

    def send_all(self, *words: Any) -> None:
        """Send the same message to all workers; `call` notices those that have ended."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(words)

    def call(
        self,
        orders: Sequence[tuple[Any, ...]],
        on_message: Callable[[int, str, tuple[Any, ...]], None],
        cancelled: threading.Event | None = None,
    ) -> list[Any]:
        """Send each worker its order and return the workers' answers.

        Args:
            on_message: Called with a worker's number and each message before its answer.
            cancelled: Ends the work early once set.

        Raises:
            RunnerFault: A worker's error, `WorkerDied` or `PassCancelled`.
            WrongState: An earlier failure ended the workers.
        """
        if not self._processes:
            raise WrongState(f"the {self._role}s were ended by an earlier failure; Unload, then Load again")
        for connection, order in zip(self._connections, orders, strict=True):
            with contextlib.suppress(OSError):
                connection.send(order)
        waiting, answers, failures = set(range(len(orders))), dict[int, Any](), list[Exception]()
        deadline_s: float | None = None
        while waiting and (deadline_s is None or time.monotonic() < deadline_s):
            readable = wait([self._connections[number] for number in waiting], timeout=POLL_S)
            ready = [number for number in sorted(waiting) if self._connections[number] in readable]
            for number in ready:
                word, *rest = self._receive(number)
                if word not in (DONE, FAILED):
                    on_message(number, word, tuple(rest))
                    continue
                waiting.discard(number)
                if word == DONE:
                    answers[number] = rest[0]
                else:
                    failures.append(self._named(number, rest[0]))
            if deadline_s is None and (failures or (cancelled and cancelled.is_set())):
                deadline_s = time.monotonic() + self._grace_s
                self.send_all(CANCEL)
        if waiting or any(isinstance(failure, WorkerDied) for failure in failures):
            # Ranks compute every step together: those that still run are of no use, and may never end.
            self.kill()
        if failures:
            raise _cause(failures)
        if waiting:
            raise PassCancelled(f"the client cancelled the pass; the {self._role}s were ended")
        return [answers[number] for number in range(len(orders))]

    def _receive(self, number: int) -> Sequence[Any]:
        """Return a worker's next message; its death is a failure."""
        try:
            words: Sequence[Any] = self._connections[number].recv()
        except (EOFError, OSError):
            process = self._processes[number]
            name = f"{self._role} {number} of {len(self._processes)} (pid {process.pid})"
            return FAILED, WorkerDied(f"{name} {_ending(process)}")
        return words

    def _named(self, number: int, failure: Exception) -> Exception:
        """Return a worker's failure with the worker's name."""
        if isinstance(failure, (PassCancelled, WorkerDied)):
            return failure
        named = type(failure)(f"{self._role} {number}: {failure}")
        named.__dict__.update(vars(failure))
        return named

    def stop(self) -> None:
        """Ask the workers to unload and end; kill those that take too long."""
        self.send_all(STOP)
        deadline_s = time.monotonic() + STOP_GRACE_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill the workers, and return when they have ended."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended that does not answer any more."""
    try:
        code = process.wait(DEATH_NOTICE_S)
    except subprocess.TimeoutExpired:
        return "stopped answering"
    if code >= 0:
        return f"died: it exited with code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"died: it was killed by {signal.Signals(-code).name}{hint}"


def _cause(failures: Sequence[Exception]) -> Exception:
    """Return the failure that the others follow from; the first of its kind."""
    kinds = (OutOfMemory, WorkerDied, InvalidRequest, WrongState, ExchangeFailed, Exception)

    def rank(failure: Exception) -> tuple[bool, int]:
        number = next(number for number, kind in enumerate(kinds) if isinstance(failure, kind))
        return isinstance(failure, PassCancelled), number

    return min(failures, key=rank)


class SpreadBackend(Backend):
    """A backend whose loaded model may be spread over several processes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._group: _Replicas | _Ranks | None = None
        self.name, self.framework = backend.name, backend.framework
        self.framework_package, self.packages = backend.framework_package, backend.packages
        self.supported_versions, self.arrivals = backend.supported_versions, backend.arrivals
        self.can_replicate, self.caveats = backend.can_replicate, backend.caveats
        self.engine_arguments = backend.engine_arguments
        if backend.engine_arguments is not None and backend.can_replicate:
            self.engine_arguments = {**backend.engine_arguments, REPLICAS: Argument((int,))}

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Load in this process, or start as many processes as the order asks for and load in all at once."""
        order, count = _without_replicas(order)
        ranks = self._backend.ranks(order)
        if count > 1 and ranks > 1:
            raise InvalidRequest(f"{REPLICAS} is {count}, and each would be split over {ranks}; choose one of the two")
        if count > 1:
            self._group = _Replicas(self.name, order, count)
        elif ranks > 1:
            self._group = _Ranks(self.name, order, ranks)
        loaded = self._group.load(report) if self._group else self._backend.load(order, report)
        if not self.can_replicate:
            return loaded
        return replace(loaded, effective_engine_args={**loaded.effective_engine_args, REPLICAS: count})

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run a pass in this process, or in all processes from a common start."""
        (self._group or self._backend).generate(workload, prompts, recorder)

    def unload(self) -> None:
        """Free the model, and end the processes that hold it."""
        if self._group:
            self._group.end()
            self._group = None
        self._backend.unload()


class _Group:
    """Processes that each hold a copy or a part of a model.

    Args:
        orders: What each process loads.
        descriptor: A descriptor of memory that the processes share, open until `end`.
        tickets: Descriptor of the counter that replicas share.
    """

    role: str
    grace_s: float
    # Number of processes, from the first, whose tokens count.
    reporting: int
    # How the processes split the work, beside what the first says of itself.
    split: Mapping[str, Any] = {}

    def __init__(
        self, backend: str, orders: Sequence[LoadOrder], places: Sequence[Place], descriptor: int, tickets: int | None
    ) -> None:
        self._orders, self._descriptor = orders, descriptor
        self._workers = Workers(backend, places, role=self.role, grace_s=self.grace_s, tickets=tickets)

    def load(self, report: Report) -> LoadedModel:
        """Load in all processes at once, and return what they hold together."""

        def on_message(number: int, word: str, rest: tuple[Any, ...]) -> None:
            # All processes load in about the same time.
            if word == STAGE and number == 0:
                report(*rest)

        models: list[LoadedModel] = self._workers.call([(LOAD, order) for order in self._orders], on_message)
        visible = dict.fromkeys(gpu for model in models for gpu in model.visible_gpus)
        used = {uuid for model in models for uuid in model.used_gpu_uuids}
        devices: dict[str, int] = {}
        for model in models:
            devices |= model.parallelism.get("devices", {})
        return replace(
            models[0],
            visible_gpus=tuple(visible),
            used_gpu_uuids=tuple(gpu.uuid for gpu in visible if gpu.uuid in used),
            parallelism={**models[0].parallelism, **self.split, "devices": devices},
            warnings=tuple(dict.fromkeys(warning for model in models for warning in model.warnings)),
        )

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run a pass in all processes, and record it."""
        raise NotImplementedError

    def run(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> list[Any]:
        """Run a pass in all processes, from a common start once all are ready; return their records."""
        ready: set[int] = set()
        progress: dict[int, tuple[int, int]] = {}

        def on_message(number: int, word: str, rest: tuple[Any, ...]) -> None:
            if word == READY:
                ready.add(number)
                if len(ready) == len(self._orders):
                    self._workers.send_all(GO, recorder.open())
            elif word == PROGRESS and number < self.reporting:
                progress[number] = rest[0], rest[1]
                recorder.tokens_so_far = sum(tokens for tokens, _ in progress.values())
                recorder.requests_finished = sum(finished for _, finished in progress.values())

        orders = [(GENERATE, workload, list(prompts))] * len(self._orders)
        return self._workers.call(orders, on_message, recorder.cancelled)

    def end(self) -> None:
        """End the processes, and free the memory that they share."""
        self._workers.stop()
        os.close(self._descriptor)


class _Replicas(_Group):
    """Copies of a model that take requests from a common queue, each on a GPU or a share of the CPU's cores."""

    role, grace_s = "replica", REPLICAS_GRACE_S

    def __init__(self, backend: str, order: LoadOrder, count: int) -> None:
        if order.gpu_uuids and len(order.gpu_uuids) != count:
            raise InvalidRequest(
                f"{REPLICAS} is {count}, and there are {len(order.gpu_uuids)} GPUs; each replica takes one"
            )
        self.reporting, self.split = count, {"kind": "data", REPLICAS: count}
        self._uuids = [order.gpu_uuids[number : number + 1] for number in range(count)]
        counter = open_counter()
        self._tickets = SharedTickets(counter)
        places = [
            Place({"CUDA_VISIBLE_DEVICES": device}, cores)
            for device, cores in zip(_devices(order, count), _cores(order, count), strict=True)
        ]
        super().__init__(backend, [replace(order, gpu_uuids=uuids) for uuids in self._uuids], places, counter, counter)

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Give each replica its share of the requests in flight; a replica with room takes the next request."""
        if workload.arrival is Arrival.SINGLE or workload.in_flight % self.reporting:
            raise InvalidRequest(
                f"{workload.in_flight} request(s) in flight cannot be shared out "
                f"among {self.reporting} replicas equally"
            )
        self._tickets.taken = 0
        parts = self.run(replace(workload, in_flight=workload.in_flight // self.reporting), prompts, recorder)
        recorder.adopt_replicas(list(zip(self._uuids, parts, strict=True)))


class _Ranks(_Group):
    """Processes that hold a model together and compute every step together; the record of the first counts."""

    role, grace_s, reporting = "rank", RANKS_GRACE_S, 1

    def __init__(self, backend: str, order: LoadOrder, count: int) -> None:
        if order.gpu_uuids and len(order.gpu_uuids) != count:
            raise InvalidRequest(f"the model is split over {count} GPUs, and there are {len(order.gpu_uuids)}")
        # No file on any disk, which a killed runner would leave behind.
        descriptor = os.memfd_create("wattdock-meeting")
        meeting = f"/proc/{os.getpid()}/fd/{descriptor}"
        orders = [replace(order, rank=Rank(number, count, meeting)) for number in range(count)]
        variables = {name: value for name, value in ON_THIS_HOST.items() if name not in os.environ}
        super().__init__(backend, orders, [Place(variables, cores) for cores in _cores(order, count)], descriptor, None)

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run the same pass in each rank; the ranks agree on every batch."""
        recorder.adopt(self.run(workload, prompts, recorder)[0])


def _without_replicas(order: LoadOrder) -> tuple[LoadOrder, int]:
    """Return what each replica loads, and the number of replicas."""
    engine_args = dict(order.engine_args)
    count = engine_args.pop(REPLICAS, 1)
    if not isinstance(count, int) or count < 1:
        raise InvalidRequest(f"{REPLICAS} must be at least 1, not {count}")
    return replace(order, engine_args=engine_args), count


def _devices(order: LoadOrder, count: int) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES of each replica; empty for replicas on the CPU."""
    if not order.gpu_uuids:
        return [""] * count
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    # A container shows its GPUs without that variable.
    return visible[:count] if len(visible) >= count else [str(number) for number in range(count)]


def _cores(order: LoadOrder, count: int) -> list[tuple[int, ...]]:
    """Return the CPU cores of each process; empty for all cores, where a GPU computes or there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // count
    if order.gpu_uuids or not each:
        return [()] * count
    return [tuple(cores[number * each : (number + 1) * each]) for number in range(count)]
