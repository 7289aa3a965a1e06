"""The errors of a runner, by what the caller can do about each.

    RunnerFault
    ├── InvalidRequest   INVALID_ARGUMENT      what was asked for does not exist or makes no sense
    ├── WrongState       FAILED_PRECONDITION   not now: nothing loaded, busy, or not on these GPUs
    ├── Unsupported      UNIMPLEMENTED         this backend has no such thing
    ├── OutOfMemory      RESOURCE_EXHAUSTED    it does not fit
    │   └── CacheTooSmall
    ├── WorkerDied       ABORTED               a process of the runner's ended in the middle
    ├── EngineFailed     INTERNAL              the engine hangs, or lost a process of its own
    ├── ExchangeFailed   ABORTED               processes or GPUs could not exchange data
    └── PassCancelled    CANCELLED             the client went away

Knows no gRPC: the interceptor turns these into status codes. A message is one line that holds the value seen.
"""

from __future__ import annotations

# The coordinator's names of causes (`wattdock.errors.Cause`).
HOST_MEMORY, GPU_MEMORY, HANG, WORKER = "out of host memory", "out of GPU memory", "hang", "worker died"
# Words, in lower case, by which libraries and processes that only print say that memory ran out.
MEMORY_WORDS = (
    *("out of memory", "outofmemory", "insufficient memory", "not enough memory", "not enough gpu memory"),
    *("failed to allocate", "unable to allocate", "can't allocate memory", "cannot allocate memory"),
    *("bad_alloc", "cuda_error_out_of_memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed"),
)
# The words of a loader without room for a library's variables of each thread, which more memory does not mend.
OTHER_MEMORY = "static tls block"


def lacks_memory(text: str) -> bool:
    """Whether a message says that memory ran out."""
    return OTHER_MEMORY not in text.lower() and any(words in text.lower() for words in MEMORY_WORDS)


class RunnerFault(Exception):  # noqa: N818 - named for what the client reads
    """Base of the errors that a backend raises on purpose; `cause` is the coordinator's name for what it is."""

    cause: str | None = None

    def __init__(self, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause or self.cause


class InvalidRequest(RunnerFault):
    """An argument that is unknown, has the wrong type, or cannot be served by this backend."""


class WrongState(RunnerFault):
    """The request is valid, but not in the current state of the runner or its machine."""


class Unsupported(RunnerFault):
    """What is asked for is not to be had of this backend, as it is loaded."""


class OutOfMemory(RunnerFault):
    """The model or the pass does not fit in the accelerator's (or the host's) memory."""

    cause = "out of memory"


class CacheTooSmall(OutOfMemory):
    """The requests in flight do not fit in the KV cache."""

    cause = "KV cache too small"


class WorkerDied(RunnerFault):
    """A process that holds a part or a copy of the model ended before it was asked to."""

    cause = WORKER


class EngineFailed(RunnerFault):
    """The engine hangs, or lost one of its own processes: the cause says which."""


class ExchangeFailed(RunnerFault):
    """The processes of a split model could not exchange data (NCCL, gloo)."""

    cause = "GPUs cannot exchange data"


class PassCancelled(RunnerFault):
    """Raised inside the engine's loop to end a pass whose client has gone."""
