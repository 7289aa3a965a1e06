"""analysis."""

from wattdock.analysis.analyse import analyse, bare_result, windows_of
from wattdock.analysis.conditions_schema import GpuConditions
from wattdock.analysis.data_parallel_schema import DataParallel
from wattdock.analysis.derived_schema import Compute, Statistics
from wattdock.analysis.difference import TEST, Difference, difference, holm
from wattdock.analysis.energy_schema import (
    BOUNDARY_STATEMENT,
    ENERGY_BOUNDARY,
    NET_MEANING,
    CrossCheck,
    EnergyResult,
    GpuProcessSeen,
    MeterFact,
    MultiGPUMetrics,
    PassEnergy,
)
from wattdock.analysis.environment_diff import (
    ABSENT,
    ENGINE,
    PACKAGE,
    SPELLED,
    conditions,
    differing,
    everything,
    labels,
    settings,
    shared,
)
from wattdock.analysis.intervals import CONFIDENCE, geometric_interval, geometric_mean, mean_interval
from wattdock.analysis.procedure_schema import GpuEvidence, Procedure
from wattdock.analysis.quantities import ENERGY, POWER, SPEED, by_restart, restart_values
from wattdock.analysis.result_schema import (
    SCHEMA_VERSION,
    Audit,
    Check,
    ExperimentResult,
    Fallback,
    Performance,
    Quantiles,
    StoredSpan,
    StudyFacts,
)
from wattdock.analysis.steadiness import (
    AtRest,
    above_band,
    at_rest,
    idle_unsettled,
    late_temperatures_c,
    warm_up_steadiness,
)
from wattdock.analysis.welch import welch
from wattdock.analysis.windows import WINDOWS
from wattdock.analysis.windows_schema import WindowFigure, WindowSummary

__all__ = [
    "ABSENT",
    "BOUNDARY_STATEMENT",
    "CONFIDENCE",
    "ENERGY",
    "ENERGY_BOUNDARY",
    "ENGINE",
    "NET_MEANING",
    "PACKAGE",
    "POWER",
    "SCHEMA_VERSION",
    "SPEED",
    "SPELLED",
    "TEST",
    "WINDOWS",
    "AtRest",
    "Audit",
    "Check",
    "Compute",
    "CrossCheck",
    "DataParallel",
    "Difference",
    "EnergyResult",
    "ExperimentResult",
    "Fallback",
    "GpuConditions",
    "GpuEvidence",
    "GpuProcessSeen",
    "MeterFact",
    "MultiGPUMetrics",
    "PassEnergy",
    "Performance",
    "Procedure",
    "Quantiles",
    "RestartExtremes",
    "Statistics",
    "StoredSpan",
    "StudyFacts",
    "WindowFigure",
    "WindowSummary",
    "above_band",
    "analyse",
    "at_rest",
    "bare_result",
    "by_restart",
    "conditions",
    "difference",
    "differing",
    "everything",
    "geometric_interval",
    "geometric_mean",
    "holm",
    "idle_unsettled",
    "labels",
    "late_temperatures_c",
    "mean_interval",
    "restart_values",
    "settings",
    "shared",
    "warm_up_steadiness",
    "welch",
    "windows_of",
]
