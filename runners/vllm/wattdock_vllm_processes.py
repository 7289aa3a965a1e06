"""What vLLM's own processes tell the runner (exceptions), and what they would leave behind (sockets, segments).

Knows no engine and imports no vLLM where the module is imported.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACE = "WATTDOCK_VLLM_FAULTS"
# Above all that runs in a child; the handlers of "vllm" itself are vLLM's, who sets them anew at any time.
CHILDRENS_LOGGER = "vllm.v1"
# vLLM has no exception class of its own for these.
MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "No available memory for the cache blocks",
    "available KV cache memory",
    "Free memory on device",
    "not enough GPU memory",
    "Available memory on node",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
MEMORY_KINDS = {"MemoryError", "OutOfMemoryError"}
# What vLLM raises for values that it does not take, or not together.
REFUSALS = {"AssertionError", "NotImplementedError", "OSError", "TypeError", "ValueError", "VLLMClientError"}
NO_WEIGHTS = "Cannot find any model weights"
DEATH = "EngineDeadError"
# How vLLM's executor ends a step that its workers did not answer in time.
SILENCE = "RPC call to "
SEGMENTS = Path("/dev/shm")  # where shm_open(3) puts them


@dataclass(frozen=True)
class Fault:
    """One exception, wherever it was raised; `kinds` are the names of its class and its bases."""

    kinds: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{self.kinds[0]}: {self.message}"

    @property
    def is_memory(self) -> bool:
        """Whether something did not fit."""
        return bool(MEMORY_KINDS.intersection(self.kinds)) or any(words in self.message for words in MEMORY_WORDS)

    @property
    def is_refusal(self) -> bool:
        """Whether vLLM does not take what it was given."""
        return bool(REFUSALS.intersection(self.kinds)) or NO_WEIGHTS in self.message

    @property
    def is_death(self) -> bool:
        """Whether vLLM says that the engine is gone."""
        return DEATH in self.kinds

    @property
    def is_silence(self) -> bool:
        """Whether vLLM gave up waiting for its workers."""
        return "TimeoutError" in self.kinds and self.message.startswith(SILENCE)


def fault_of(error: BaseException) -> Fault:
    """Return an exception as a value."""
    return Fault(tuple(kind.__name__ for kind in type(error).__mro__), str(error))


class ChildFaults:
    """What the children of this process reported, in a file without a name on any disk.

    Of an exception in a child process vLLM tells the runner only that there was one. It logs the exception there, so a
    log handler in each child reports it. Children report to the latest `ChildFaults` made before their start.
    """

    def __init__(self) -> None:
        # A spawned child inherits variables, but no descriptors.
        self._place = Path(f"/proc/{os.getpid()}/fd/{os.memfd_create('wattdock-faults')}")
        os.environ[PLACE] = str(self._place)

    def reported(self) -> int:
        """Return how much was reported until now, for `cause`."""
        return self._place.stat().st_size

    def cause(self, since: int = 0) -> Fault | None:
        """Return the first fault that was reported `since` then, or the first of memory: others follow from it."""
        lines = map(json.loads, self._place.read_bytes()[since:].splitlines())
        known = [Fault(tuple(line["kinds"]), line["message"]) for line in lines]
        return next((fault for fault in known if fault.is_memory), next(iter(known), None))


class _Reporter(logging.Handler):
    """Writes each exception that is logged to one file, a line of JSON each."""

    def __init__(self, place: Path) -> None:
        super().__init__(logging.ERROR)
        self._place = place

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            with self._place.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(fault_of(record.exc_info[1]))) + "\n")


def report_to_parent() -> None:
    """Report every exception that vLLM logs from now on in this process, a child of the runner's."""
    if place := os.environ.get(PLACE):
        logging.getLogger(CHILDRENS_LOGGER).addHandler(_Reporter(Path(place)))


def unlink_once_shared() -> None:
    """Have every group of this worker unlink its segment of shared memory when the whole group has mapped it.

    On a CPU vLLM's workers compute together through segments (`…-cpushm_N`, 2 MiB for each thread) that only a worker
    which ends by itself unlinks; Python's resource tracker does not know them. Mapped memory needs no name any more.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    share = _CPUSHMDistributed._init_cpu_shm

    @wraps(share)
    def share_and_unlink(group: Any) -> Any:
        # It returns from a barrier behind the mapping.
        handle = share(group)
        (SEGMENTS / f"{group.group_name}_{group.communicator.rank}").unlink(missing_ok=True)
        return handle

    _CPUSHMDistributed._init_cpu_shm = share_and_unlink


def open_sockets() -> tuple[Any, ...]:
    """Return this process's zmq sockets; while they are held, neither they nor their contexts are collected.

    A zmq context that is collected together with its sockets waits for ever: they are closed only after it. vLLM 0.26
    leaves the queues to the workers of a split model to the collector; 0.32 closes them itself.
    """
    import zmq

    # The engine's start froze all that was there, and what is frozen is not listed.
    gc.unfreeze()
    sockets = tuple(found for found in gc.get_objects() if issubclass(type(found), zmq.Socket))
    gc.freeze()
    return sockets


def close_sockets(sockets: Iterable[Any]) -> None:
    """Close sockets; what they have not sent is dropped."""
    for socket in sockets:
        socket.close(linger=0)
