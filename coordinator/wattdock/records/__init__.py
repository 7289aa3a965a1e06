"""records."""

from wattdock.records.environment import (
    ClockFacts,
    ConditionChange,
    ContainerFacts,
    EnvironmentSnapshot,
    ModelFacts,
    RunnerEnvironment,
    RunnerGpu,
    Topology,
)
from wattdock.records.failure import Failure
from wattdock.records.restart import (
    INTERRUPTED,
    GeneratedPass,
    Loaded,
    MeasuredPass,
    ReplicaPass,
    RequestRecord,
    RestartRecord,
    TokenSeries,
    WarmUpSample,
    clocks_of,
)

__all__ = [
    "INTERRUPTED",
    "ClockFacts",
    "ConditionChange",
    "ContainerFacts",
    "EnvironmentSnapshot",
    "Failure",
    "GeneratedPass",
    "Loaded",
    "MeasuredPass",
    "ModelFacts",
    "ReplicaPass",
    "RequestRecord",
    "RestartRecord",
    "RunnerEnvironment",
    "RunnerGpu",
    "TokenSeries",
    "Topology",
    "WarmUpSample",
    "clocks_of",
]
