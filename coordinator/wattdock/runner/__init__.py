"""Talk to one runner over gRPC: describe, load, generate, diagnose, unload.

In: a launched runner; requests as plain values. Out: records of passes, and one-line errors for every way in which a
runner can fail. Only this room knows protobuf and gRPC. `Marks` reads what a command of the user's own writes.
Must not know: how a runner was started, what a pass costs, what an experiment is.
"""

from wattdock.runner.client import RunnerClient
from wattdock.runner.marks import Marks
from wattdock.runner.wire import (
    Heartbeat,
    LoadRequest,
    NodePlace,
    PassRequest,
    RunnerDescription,
    RunnerFinding,
    load_request,
)

__all__ = [
    "Heartbeat",
    "LoadRequest",
    "Marks",
    "NodePlace",
    "PassRequest",
    "RunnerClient",
    "RunnerDescription",
    "RunnerFinding",
    "load_request",
]
