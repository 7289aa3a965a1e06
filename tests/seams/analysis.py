"""What tests reach behind the door of `analysis`: a name that moves is changed here only."""

from wattdock.analysis.budget import Budget, Entry, NotIncluded
from wattdock.analysis.compute import NO_BITS, Compute, Roofline, compute
from wattdock.analysis.conditions import differing, everything
from wattdock.analysis.energy import EnergyResult, measured_energy
from wattdock.analysis.goodput import NO_INSTANTS, Goodput, goodput
from wattdock.analysis.gpus import GpuResult, ListedProcess, gpu_results, listed_processes
from wattdock.analysis.idle import idle_baselines, idle_energy_j
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
from wattdock.analysis.procedure import procedure
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
    mean_interval,
    statistical_j,
)
from wattdock.analysis.statistics import statistics as statistics_statistics
from wattdock.analysis.token_costs import KINDS, Bins, MeteredWork, NoCostsError, TokenCosts, Work, costs, token_costs
from wattdock.analysis.verdict import QUESTIONS, Reason
from wattdock.analysis.windows import WINDOWS, WindowFigure, phases, rounds_of, windows

__all__ = [
    "CONFIDENCE",
    "DIFFERENT_GPUS",
    "KINDS",
    "NORMAL95",
    "NO_BITS",
    "NO_INSTANTS",
    "QUESTIONS",
    "SPEED",
    "T_FACTORS",
    "WINDOWS",
    "Bins",
    "Budget",
    "Compute",
    "Difference",
    "EnergyResult",
    "Entry",
    "Figure",
    "Goodput",
    "GpuResult",
    "Interval",
    "Joules",
    "ListedProcess",
    "Measured",
    "MeteredWork",
    "NoCostsError",
    "NotIncluded",
    "PassEnergy",
    "Performance",
    "Quantiles",
    "Reason",
    "Restarts",
    "Roofline",
    "SpanJoules",
    "TokenCosts",
    "WindowCheck",
    "WindowFigure",
    "Work",
    "combined_timing_j",
    "compute",
    "costs",
    "cross_check",
    "data_parallel",
    "difference",
    "differing",
    "everything",
    "goodput",
    "gpu_results",
    "holm",
    "host_energy",
    "idle_baselines",
    "idle_energy_j",
    "inter_token_latency",
    "listed_processes",
    "mean_interval",
    "measured_energy",
    "multi_gpu",
    "performance",
    "phases",
    "procedure",
    "quantiles",
    "rounds_of",
    "serving",
    "statistical_j",
    "statistics_statistics",
    "token_costs",
    "token_disagreements",
    "tpot_s",
    "ttft_s",
    "undrained",
    "windows",
]
