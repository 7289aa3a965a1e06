"""What tests reach behind the door of `analysis`: a name that moves is changed here only."""

from wattdock.analysis.budget import (
    CONTEXT,
    PER_C,
    PROMPTS,
    ROOM_C,
    SECONDS,
    Budget,
    Entry,
    Window,
    budget,
)
from wattdock.analysis.compute import NO_BITS, Compute, Roofline, compute
from wattdock.analysis.conditions import differing, everything, required_conditions
from wattdock.analysis.drift import Drift, drift
from wattdock.analysis.energy import EnergyResult, measured_energy
from wattdock.analysis.goodput import NO_INSTANTS, Goodput, goodput
from wattdock.analysis.gpus import GpuResult, ListedProcess, gpu_results, listed_processes
from wattdock.analysis.joules import NORMAL95, Joules, SpanJoules, combined_timing_j
from wattdock.analysis.measured import DIFFERENT_GPUS, Measured
from wattdock.analysis.multi_gpu import data_parallel, multi_gpu
from wattdock.analysis.other_meters import WindowCheck, cross_check, host_energy
from wattdock.analysis.pass_energy import PassEnergy
from wattdock.analysis.performance import (
    Performance,
    Quantiles,
    inter_token_latency,
    performance,
    quantiles,
    serving,
    token_disagreements,
    tpot_s,
    ttft_s,
    undrained,
)
from wattdock.analysis.procedure import WarmUp, procedure
from wattdock.analysis.statistics import (
    CONFIDENCE,
    SPEED,
    T_FACTORS,
    Difference,
    Figure,
    Interval,
    Restarts,
    difference,
    holm,
    paired_difference,
)
from wattdock.analysis.statistics import statistics as statistics_statistics
from wattdock.analysis.steadiness import (
    IdleState,
    idle_baselines,
    idle_energy_j,
    idle_unsettled,
    late_temperatures_c,
    not_cooled_down,
    warm_up_steadiness,
)
from wattdock.analysis.token_costs import TokenCosts, token_costs
from wattdock.analysis.trend import Change, median_slope, pooled, slope
from wattdock.analysis.verdict import GROUPS, Reason
from wattdock.analysis.windows import WINDOWS, WindowFigure, phases, rounds_of, windows
from wattdock.analysis.work_costs import KINDS, Bins, MeteredWork, NoCostsError, Work, costs

__all__ = [
    "CONFIDENCE",
    "CONTEXT",
    "DIFFERENT_GPUS",
    "GROUPS",
    "KINDS",
    "NORMAL95",
    "NO_BITS",
    "NO_INSTANTS",
    "PER_C",
    "PROMPTS",
    "ROOM_C",
    "SECONDS",
    "SPEED",
    "T_FACTORS",
    "WINDOWS",
    "Bins",
    "Budget",
    "Change",
    "Compute",
    "Difference",
    "Drift",
    "EnergyResult",
    "Entry",
    "Figure",
    "Goodput",
    "GpuResult",
    "IdleState",
    "Interval",
    "Joules",
    "ListedProcess",
    "Measured",
    "MeteredWork",
    "NoCostsError",
    "PassEnergy",
    "Performance",
    "Quantiles",
    "Reason",
    "Restarts",
    "Roofline",
    "SpanJoules",
    "TokenCosts",
    "WarmUp",
    "Window",
    "WindowCheck",
    "WindowFigure",
    "Work",
    "budget",
    "combined_timing_j",
    "compute",
    "costs",
    "cross_check",
    "data_parallel",
    "difference",
    "differing",
    "drift",
    "everything",
    "goodput",
    "gpu_results",
    "holm",
    "host_energy",
    "idle_baselines",
    "idle_energy_j",
    "idle_unsettled",
    "inter_token_latency",
    "late_temperatures_c",
    "listed_processes",
    "measured_energy",
    "median_slope",
    "multi_gpu",
    "not_cooled_down",
    "paired_difference",
    "performance",
    "phases",
    "pooled",
    "procedure",
    "quantiles",
    "required_conditions",
    "rounds_of",
    "serving",
    "slope",
    "statistics_statistics",
    "token_costs",
    "token_disagreements",
    "tpot_s",
    "ttft_s",
    "undrained",
    "warm_up_steadiness",
    "windows",
]
