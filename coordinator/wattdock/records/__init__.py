"""Raw records of a measurement: requests, passes, restarts, the environment and failures, and their form on disk.

In: values from the runner, the meter and the host. Out: a `RestartRecord`, which `disk` writes to
a folder and reads back bit-exact. `snapshot` holds the parts of an `EnvironmentSnapshot`, `passes` those of a pass.
Must not know: protobuf, studies, results, how records are analysed.
"""

from wattdock.records import disk, passes, snapshot
from wattdock.records.passes import PassRecord
from wattdock.records.request import RequestRecord
from wattdock.records.restart import Evaluation, Failure, RestartRecord
from wattdock.records.snapshot import EnvironmentSnapshot, RunnerEnvironment

__all__ = [
    "EnvironmentSnapshot",
    "Evaluation",
    "Failure",
    "PassRecord",
    "RequestRecord",
    "RestartRecord",
    "RunnerEnvironment",
    "disk",
    "passes",
    "snapshot",
]
