"""Raw records of a measurement: requests, passes, restarts, the environment and failures, and their form on disk.

In: values from the runner, the meter and the host. Out: a `RestartRecord`, which writes itself to a folder and reads it
back bit-exact. The parts of an `EnvironmentSnapshot` are in `snapshot`, the arrays of a pass in `series`.
Must not know: protobuf, studies, results, how records are analysed.
"""

from wattdock.records import series, snapshot
from wattdock.records.failure import Failure
from wattdock.records.restart import (
    PassRecord,
    ReplicaPass,
    RequestRecord,
    RestartRecord,
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
    "WarmUpSample",
    "series",
    "snapshot",
]
