"""What a measurement saw: requests, passes, restarts, the environment, a failure; and how a restart lies on disk.

In: values from the runner, the meter and the host. Out: a `RestartRecord`, written and read back bit-exact as a folder.
Must not know: protobuf, studies, results, what any of it means.
"""

from wattdock.records.environment import (
    ConditionChange,
    ContainerFacts,
    EnvironmentSnapshot,
    ModelFacts,
    RunnerEnvironment,
    RunnerGpu,
    Topology,
)
from wattdock.records.failure import Failure
from wattdock.records.folder import (
    find_restarts,
    read_restart,
    write_restart,
)
from wattdock.records.restart import (
    PassRecord,
    ReplicaPass,
    RequestRecord,
    RestartRecord,
    TokenSeries,
    WarmUpSample,
    clock_facts,
    clocks_of,
)

__all__ = [
    "ConditionChange",
    "ContainerFacts",
    "EnvironmentSnapshot",
    "Failure",
    "ModelFacts",
    "PassRecord",
    "ReplicaPass",
    "RequestRecord",
    "RestartRecord",
    "RunnerEnvironment",
    "RunnerGpu",
    "TokenSeries",
    "Topology",
    "WarmUpSample",
    "clock_facts",
    "clocks_of",
    "find_restarts",
    "read_restart",
    "write_restart",
]
