"""analysis."""

from wattdock.analysis.compute import compute
from wattdock.analysis.conditions import gpu_conditions
from wattdock.analysis.conditions_schema import GpuConditions
from wattdock.analysis.data_parallel import data_parallel
from wattdock.analysis.data_parallel_schema import DataParallel
from wattdock.analysis.derived_schema import Compute, Statistics
from wattdock.analysis.difference import TEST, Difference, difference, holm
from wattdock.analysis.energy import Gpus, measured_energy
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
    held_conditions,
    labels,
    settings,
    shared,
)
from wattdock.analysis.idle import idle_baselines, idle_energy_j
from wattdock.analysis.intervals import CONFIDENCE, geometric_interval, geometric_mean, mean_interval
from wattdock.analysis.joules import SpanJoules
from wattdock.analysis.multi_gpu import multi_gpu
from wattdock.analysis.performance import performance
from wattdock.analysis.phases import phases
from wattdock.analysis.procedure import procedure
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
from wattdock.analysis.statistics import statistical_j, statistics
from wattdock.analysis.steadiness import (
    AtRest,
    above_band,
    at_rest,
    idle_unsettled,
    late_temperatures_c,
    warm_up_steadiness,
)
from wattdock.analysis.welch import welch
from wattdock.analysis.windows import WINDOWS, windows
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
    "Gpus",
    "MeterFact",
    "MultiGPUMetrics",
    "PassEnergy",
    "Performance",
    "Procedure",
    "Quantiles",
    "SpanJoules",
    "Statistics",
    "StoredSpan",
    "StudyFacts",
    "WindowFigure",
    "WindowSummary",
    "above_band",
    "at_rest",
    "by_restart",
    "compute",
    "conditions",
    "data_parallel",
    "difference",
    "differing",
    "everything",
    "geometric_interval",
    "geometric_mean",
    "gpu_conditions",
    "held_conditions",
    "holm",
    "idle_baselines",
    "idle_energy_j",
    "idle_unsettled",
    "labels",
    "late_temperatures_c",
    "mean_interval",
    "measured_energy",
    "multi_gpu",
    "performance",
    "phases",
    "procedure",
    "restart_values",
    "settings",
    "shared",
    "statistical_j",
    "statistics",
    "warm_up_steadiness",
    "welch",
    "windows",
]
