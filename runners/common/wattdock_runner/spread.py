"""Serve a backend from several processes where a load asks for it: equal replicas, or ranks that share one model.

Everything else goes to the backend in this process, as if this file were not there. Knows no engine.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wattdock_runner.arguments import Argument
from wattdock_runner.arrivals import SharedTickets, open_counter
from wattdock_runner.backend import Arrival, Backend, Rank
from wattdock_runner.clock import Span
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.worker import GENERATE, GO, LOAD, PROGRESS, READY, STAGE
from wattdock_runner.workers import Place, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock_runner.backend import LoadedModel, LoadOrder, Prompt, Workload
    from wattdock_runner.recorder import PassRecorder

REPLICAS = "data_parallel_size"
# A replica ends at its next step; ranks wait for each other for ever once one of them is gone.
REPLICAS_GRACE_S, RANKS_GRACE_S = 60.0, 2.0
# One host: whatever they say besides what goes from GPU to GPU stays on it, and a container may have nothing else.
ON_THIS_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class SpreadBackend(Backend):
    """A backend, and the processes it is spread over while a load asked for some."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._group: _Replicas | _Ranks | None = None
        self.name, self.framework = backend.name, backend.framework
        self.framework_package, self.packages = backend.framework_package, backend.packages
        self.supported_versions, self.arrivals = backend.supported_versions, backend.arrivals
        self.can_replicate, self.caveats = backend.can_replicate, backend.caveats
        own = backend.engine_arguments
        replicable = {REPLICAS: Argument((int,))} if self.can_replicate else {}
        self.engine_arguments = None if own is None else {**own, **replicable}

    def load(self, order: LoadOrder, report: Callable[[str, float | None], None]) -> LoadedModel:
        """Load here, or start as many processes as the order asks for and load in all of them at once."""
        own, count = _without_replicas(order) if self.can_replicate else (order, 1)
        ranks = self._backend.ranks(own)
        if count > 1 and ranks > 1:
            raise InvalidRequest(f"{REPLICAS} is {count}, and each would be split over {ranks}; choose one of the two")
        if count > 1:
            self._group = _Replicas(self.name, own, count)
        elif ranks > 1:
            self._group = _Ranks(self.name, own, ranks)
        loaded = self._group.load(report) if self._group else self._backend.load(own, report)
        if not self.can_replicate:
            return loaded
        return replace(loaded, effective_engine_args={**loaded.effective_engine_args, REPLICAS: count})

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run one pass here, or in all processes from one common start."""
        (self._group or self._backend).generate(workload, prompts, recorder)

    def unload(self) -> None:
        """Free the model, and end the processes that hold it."""
        if self._group:
            self._group.end()
            self._group = None
        self._backend.unload()


class _Replicas:
    """Equal engines, each with one GPU (or a share of the CPU's cores) to itself, that take from one queue."""

    def __init__(self, backend: str, order: LoadOrder, count: int) -> None:
        if order.gpu_uuids and len(order.gpu_uuids) != count:
            raise InvalidRequest(
                f"{REPLICAS} is {count}, and there are {len(order.gpu_uuids)} GPUs; each replica takes one"
            )
        self._count = count
        self._uuids = [order.gpu_uuids[number : number + 1] for number in range(count)]
        self._orders = [replace(order, gpu_uuids=uuids) for uuids in self._uuids]
        self._counter = open_counter()
        self._tickets = SharedTickets(self._counter)
        places = [
            Place({"CUDA_VISIBLE_DEVICES": device}, cores)
            for device, cores in zip(_devices(order, count), _cores(order, count), strict=True)
        ]
        self.workers = Workers(backend, places, called="replica", grace_s=REPLICAS_GRACE_S, tickets=self._counter)

    def load(self, report: Callable[[str, float | None], None]) -> LoadedModel:
        """Load one copy in each, all at once."""
        models = _load(self.workers, self._orders, report)
        return replace(
            models[0],
            visible_gpus=tuple(gpu for model in models for gpu in model.visible_gpus),
            used_gpu_uuids=tuple(uuid for model in models for uuid in model.used_gpu_uuids),
            parallelism={"kind": "data", REPLICAS: self._count, "devices": _devices_of(models)},
            warnings=tuple(dict.fromkeys(warning for model in models for warning in model.warnings)),
            spans=(_load_span(models),),
        )

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Share out the requests in flight, and let whoever has room take the next."""
        share = self._share(workload)
        self._tickets.taken = 0
        recorded = _generate(self.workers, share, prompts, recorder, counted=range(self._count))
        recorder.adopt_replicas([(uuids, *part) for uuids, part in zip(self._uuids, recorded, strict=True)])

    def end(self) -> None:
        """End them, and give the queue's memory back."""
        self.workers.stop()
        os.close(self._counter)

    def _share(self, workload: Workload) -> Workload:
        if workload.arrival is Arrival.SINGLE or workload.in_flight % self._count:
            raise InvalidRequest(
                f"{workload.in_flight} request(s) in flight cannot be shared out among {self._count} replicas equally"
            )
        return replace(workload, in_flight=workload.in_flight // self._count)


class _Ranks:
    """Processes that hold one model together and compute every step together; the first one's record counts."""

    def __init__(self, backend: str, order: LoadOrder, count: int) -> None:
        if order.gpu_uuids and len(order.gpu_uuids) != count:
            raise InvalidRequest(f"the model is split over {count} GPUs, and there are {len(order.gpu_uuids)}")
        # No file on any disk, which a killed runner would leave behind.
        self._meeting = os.memfd_create("wattdock-meeting")
        meeting = f"/proc/{os.getpid()}/fd/{self._meeting}"
        self._orders = [replace(order, rank=Rank(number, count, meeting)) for number in range(count)]
        variables = {name: value for name, value in ON_THIS_HOST.items() if name not in os.environ}
        places = [Place(variables, cores) for cores in _cores(order, count)]
        self.workers = Workers(backend, places, called="rank", grace_s=RANKS_GRACE_S)

    def load(self, report: Callable[[str, float | None], None]) -> LoadedModel:
        """Load a part in each, all at once."""
        models = _load(self.workers, self._orders, report)
        used = {uuid for model in models for uuid in model.used_gpu_uuids}
        first = models[0]
        return replace(
            first,
            used_gpu_uuids=tuple(gpu.uuid for gpu in first.visible_gpus if gpu.uuid in used),
            parallelism={**first.parallelism, "devices": _devices_of(models)},
            spans=(_load_span(models),),
        )

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run the same pass in each; they agree among themselves on every batch."""
        recorder.adopt(*_generate(self.workers, workload, prompts, recorder, counted=range(1))[0])

    def end(self) -> None:
        """End them, and give the place where they met back."""
        self.workers.stop()
        os.close(self._meeting)


def _without_replicas(order: LoadOrder) -> tuple[LoadOrder, int]:
    given = dict(order.engine_args)
    count = given.pop(REPLICAS, 1)
    if not isinstance(count, int) or count < 1:
        raise InvalidRequest(f"{REPLICAS} must be at least 1, not {count}")
    return replace(order, engine_args=given), count


def _load(
    workers: Workers, orders: Sequence[LoadOrder], report: Callable[[str, float | None], None]
) -> list[LoadedModel]:
    def heard(number: int, word: str, rest: tuple[Any, ...]) -> None:
        # They do the same at about the same time.
        if word == STAGE and number == 0:
            report(*rest)

    return workers.call([(LOAD, order) for order in orders], heard)


def _generate(
    workers: Workers, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder, *, counted: range
) -> list[Any]:
    """Run a pass in all workers, from one start once all are ready; return what each recorded.

    Args:
        counted: Workers whose tokens are other tokens than the others'.
    """
    ready: set[int] = set()
    progress: dict[int, tuple[int, int]] = {}

    def heard(number: int, word: str, rest: tuple[Any, ...]) -> None:
        if word == READY:
            ready.add(number)
            if len(ready) == len(workers.pids):
                workers.send_all(GO, recorder.open())
        elif word == PROGRESS and number in counted:
            progress[number] = rest[0], rest[1]
            recorder.tokens_so_far = sum(tokens for tokens, _ in progress.values())
            recorder.requests_finished = sum(finished for _, finished in progress.values())

    orders = [(GENERATE, workload, list(prompts))] * len(workers.pids)
    return workers.call(orders, heard, recorder.cancelled)


def _devices(order: LoadOrder, count: int) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES of each replica; empty where it runs on the CPU."""
    if not order.gpu_uuids:
        return [""] * count
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    # A container shows its GPUs without that variable.
    return visible[:count] if len(visible) >= count else [str(number) for number in range(count)]


def _cores(order: LoadOrder, count: int) -> list[tuple[int, ...]]:
    """Return the CPU cores of each process; empty, which is all of them, where a GPU computes or they are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // count
    if order.gpu_uuids or not each:
        return [()] * count
    return [tuple(cores[number * each : (number + 1) * each]) for number in range(count)]


def _devices_of(models: Sequence[LoadedModel]) -> dict[str, Any]:
    """Return layers by GPU UUID, over all processes."""
    devices: dict[str, Any] = {}
    for model in models:
        own: Any = model.parallelism.get("devices")
        devices |= own or {}
    return devices


def _load_span(models: Sequence[LoadedModel]) -> Span:
    return Span.around("load", [span for model in models for span in model.spans if span.name == "load"])
