"""Exceptions that vLLM's processes report to the runner, and sockets and segments that they would leave behind.

Importing this module imports no vLLM.
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

from wattdock_runner.errors import lacks_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACE = "WATTDOCK_VLLM_FAULTS"
# The parent of all loggers in a child; vLLM sets the handlers of "vllm" anew at any time.
CHILDRENS_LOGGER = "vllm.v1"
# Words of vLLM's exceptions for a lack of memory, which have no class of their own. In what its server prints they may
# be no failure.
MEMORY_WORDS = (
    "No available memory for the cache blocks",
    "available KV cache memory",
    "Free memory on device",
    "Available memory on node",
)
MEMORY_KINDS = {"MemoryError", "OutOfMemoryError"}
# Classes that vLLM raises for values that it does not take, or not together.
REFUSALS = {"AssertionError", "NotImplementedError", "OSError", "TypeError", "ValueError", "VLLMClientError"}
NO_WEIGHTS = "Cannot find any model weights"
# The first words of vLLM's executor for a step whose workers have not answered in time.
SILENCE = "RPC call to "
SEGMENTS = Path("/dev/shm")  # where shm_open(3) puts them


@dataclass(frozen=True)
class Fault:
    """An exception of any process; `kinds` are the names of its class and of the class's bases."""

    kinds: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{self.kinds[0]}: {self.message}"

    @property
    def reason(self) -> str:
        """What it says, or else what it is."""
        return self.message or self.kinds[0]

    @property
    def is_memory(self) -> bool:
        """Whether memory ran out."""
        is_told = lacks_memory(self.message) or any(words in self.message for words in MEMORY_WORDS)
        return is_told or bool(MEMORY_KINDS.intersection(self.kinds))

    @property
    def is_refusal(self) -> bool:
        """Whether vLLM refuses a value."""
        return bool(REFUSALS.intersection(self.kinds)) or NO_WEIGHTS in self.message

    @property
    def is_silence(self) -> bool:
        """Whether vLLM gave up waiting for its workers."""
        return "TimeoutError" in self.kinds and self.message.startswith(SILENCE)


def fault_of(error: BaseException) -> Fault:
    """Return an exception as a value; of pydantic's, the first mistake in one line: argument, choices, value seen."""
    message, kinds = str(error), tuple(kind.__name__ for kind in type(error).__mro__)
    if kinds[0] == "ValidationError":
        first: Any = error.errors()[0]  # type: ignore[attr-defined]
        seen = f", not {first['input']!r}" if first["loc"] else ""
        message = ": ".join((*map(str, first["loc"]), first["msg"].removeprefix("Value error, "))) + seen
    return Fault(kinds, message)


class ChildFaults:
    """Exceptions that child processes report, in a file in memory.

    vLLM logs an exception of a child process in the child, and tells the runner no more than that there was one; so a
    log handler in each child reports it here. Children report to the latest `ChildFaults` made before their start.
    """

    def __init__(self) -> None:
        # A spawned child inherits variables, but no descriptors.
        self._place = Path(f"/proc/{os.getpid()}/fd/{os.memfd_create('wattdock-faults')}")
        os.environ[PLACE] = str(self._place)

    def reported(self) -> int:
        """Return the size of all reports until now, for `cause`."""
        return self._place.stat().st_size

    def cause(self, since: int = 0) -> Fault | None:
        """Return the first fault reported since then, but a lack of memory before others, which follow from it."""
        lines = map(json.loads, self._place.read_bytes()[since:].splitlines())
        faults = [Fault(tuple(line["kinds"]), line["message"]) for line in lines]
        return min(faults, key=lambda fault: not fault.is_memory, default=None)


class _Reporter(logging.Handler):
    """Writes each logged exception to a file, as a line of JSON."""

    def __init__(self, place: Path) -> None:
        super().__init__(logging.ERROR)
        self._place = place

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            with self._place.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(fault_of(record.exc_info[1]))) + "\n")


def report_to_parent() -> None:
    """Report every exception that vLLM logs from now on in this child process of the runner."""
    if place := os.environ.get(PLACE):
        logging.getLogger(CHILDRENS_LOGGER).addHandler(_Reporter(Path(place)))


def unlink_once_shared() -> None:
    """Have every group of this worker unlink its segment of shared memory when the whole group has mapped it.

    On a CPU vLLM's workers compute through segments (`…-cpushm_N`, 2 MiB for each thread) that only a worker which ends
    by itself unlinks; Python's resource tracker does not know them. Mapped memory needs no name any more.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    share = _CPUSHMDistributed._init_cpu_shm

    @wraps(share)
    def share_and_unlink(group: Any) -> Any:
        # All workers of the group have mapped the segment when this returns.
        handle = share(group)
        (SEGMENTS / f"{group.group_name}_{group.communicator.rank}").unlink(missing_ok=True)
        return handle

    _CPUSHMDistributed._init_cpu_shm = share_and_unlink


def open_sockets() -> tuple[Any, ...]:
    """Return this process's zmq sockets; a reference keeps them and their contexts from being collected.

    A zmq context that is collected together with its sockets waits for ever, since they are closed after it. vLLM 0.26
    leaves the queues to workers of a split model to the collector; vLLM 0.32 closes them.
    """
    import zmq

    # The engine's start has frozen all objects, and frozen objects are not listed.
    gc.unfreeze()
    sockets = tuple(item for item in gc.get_objects() if issubclass(type(item), zmq.Socket))
    gc.freeze()
    return sockets


def close_sockets(sockets: Iterable[Any]) -> None:
    """Close sockets, and drop what they have not sent."""
    for socket in sockets:
        socket.close(linger=0)
