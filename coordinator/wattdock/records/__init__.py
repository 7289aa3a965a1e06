"""What a measurement saw: requests, passes, restarts, the environment, a failure; and how a restart lies on disk.

In: values from the runner, the meter and the host. Out: a `RestartRecord`, written and read back bit-exact as a folder.
The parts of an `EnvironmentSnapshot` are in `snapshot`.
Must not know: protobuf, studies, results, what any of it means.
"""

from wattdock.records import snapshot
from wattdock.records.failure import Failure
from wattdock.records.restart import (
    PassRecord,
    ReplicaPass,
    RequestRecord,
    RestartRecord,
    TokenSeries,
    WarmUpSample,
)
from wattdock.records.snapshot import EnvironmentSnapshot, RunnerEnvironment

__all__ = [
    "EnvironmentSnapshot",
    "Failure",
    "PassRecord",
    "ReplicaPass",
    "RequestRecord",
    "RestartRecord",
    "RunnerEnvironment",
    "TokenSeries",
    "WarmUpSample",
    "snapshot",
]
