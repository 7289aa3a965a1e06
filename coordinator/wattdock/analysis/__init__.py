"""What was measured, worked out: records of restarts become one `ExperimentResult`, and results are compared.

In: an experiment's settings and the `RestartRecord` of each restart, which say all else. Out: an `ExperimentResult`
without its audit (`analyse`); intervals, differences and names for results that stand side by side.
Must not know: files, processes, GPUs of this machine, how anything is drawn. Each file holds one subject, its schema
beside the computation.
"""

from wattdock.analysis.energy import NET_MEANING, EnergyResult
from wattdock.analysis.environment import (
    ABSENT,
    ENGINE,
    PACKAGE,
    differing,
    everything,
    labels,
    settings,
    shared,
)
from wattdock.analysis.gpus import (
    BOUNDARY_STATEMENT,
    ENERGY_BOUNDARY,
    DataParallel,
    GpuConditions,
    GpuProcessSeen,
    MultiGPUMetrics,
)
from wattdock.analysis.joules import CrossCheck
from wattdock.analysis.performance import Quantiles
from wattdock.analysis.procedure import Procedure
from wattdock.analysis.result import (
    SCHEMA_VERSION,
    Audit,
    Check,
    ExperimentResult,
    Fallback,
    StoredSpan,
    StudyFacts,
    analyse,
    bare_result,
    windows_of,
)
from wattdock.analysis.statistics import (
    CONFIDENCE,
    ENERGY,
    POWER,
    SPEED,
    TEST,
    Difference,
    by_restart,
    difference,
    geometric_interval,
    geometric_mean,
    holm,
    mean_interval,
    restart_values,
    welch,
)
from wattdock.analysis.steadiness import (
    AtRest,
    above_band,
    at_rest,
    idle_unsettled,
    late_temperatures_c,
    warm_up_steadiness,
)
from wattdock.analysis.windows import WINDOWS, WindowFigure, WindowSummary

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
    "TEST",
    "WINDOWS",
    "AtRest",
    "Audit",
    "Check",
    "CrossCheck",
    "DataParallel",
    "Difference",
    "EnergyResult",
    "ExperimentResult",
    "Fallback",
    "GpuConditions",
    "GpuProcessSeen",
    "MultiGPUMetrics",
    "Procedure",
    "Quantiles",
    "StoredSpan",
    "StudyFacts",
    "WindowFigure",
    "WindowSummary",
    "above_band",
    "analyse",
    "at_rest",
    "bare_result",
    "by_restart",
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
