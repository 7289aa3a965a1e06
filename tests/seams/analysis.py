"""What tests reach behind the door of `analysis`: a name that moves is changed here only."""

from wattdock.analysis.answers import Answers, undeclared_answers
from wattdock.analysis.block_fit import CONTEXT, PROMPTS, SECONDS, TEMPERATURE_COEFFICIENT, Window
from wattdock.analysis.blocks import draw_of_speed, measured_budget, window_of
from wattdock.analysis.budget import BOARDS, BOARDS_FOUND, BOARDS_POOLED, ROOM_C, Budget, Entry, NotIncluded, budget
from wattdock.analysis.compute import NO_BITS, Compute, Roofline, compute
from wattdock.analysis.conditions import differing, everything, required_conditions
from wattdock.analysis.energy import EnergyResult, measured_energy, multi_gpu
from wattdock.analysis.goodput import NO_INSTANTS, Goodput, goodput
from wattdock.analysis.gpus import GpuResult, ListedProcess, gpu_results, listed_processes
from wattdock.analysis.idle import idle_baselines, idle_energy_j
from wattdock.analysis.joules import NORMAL95, Joules, SpanJoules
from wattdock.analysis.measured import DIFFERENT_GPUS, Measured
from wattdock.analysis.mix import PassMix
from wattdock.analysis.occupancy import Instants, NoWindowError
from wattdock.analysis.other_meters import WindowCheck, cross_check
from wattdock.analysis.pass_energy import WindowFigure
from wattdock.analysis.performance import (
    Drafts,
    Performance,
    Quantiles,
    performance,
    quantiles,
    serving,
    since_arrival_s,
    token_disagreements,
    tpot_s,
    undrained,
)
from wattdock.analysis.phases import Bins, MeteredWork, Phases, Work, costs, phases, rounds_of
from wattdock.analysis.procedure import Procedure, procedure
from wattdock.analysis.quality import AnswerFigures, Quality, TaskFigures, half_width, quality
from wattdock.analysis.statistics import (
    CONFIDENCE,
    SPEED,
    T_FACTORS,
    Difference,
    Figure,
    Interval,
    Restarts,
    by_restart,
    difference,
    holm,
    paired_difference,
    pooled_deviation,
    t_factor,
)
from wattdock.analysis.verdict import QUESTIONS
from wattdock.analysis.windows import WINDOWS, is_long_enough
from wattdock.analysis.work import work as work_done

__all__ = [
    "BOARDS",
    "BOARDS_FOUND",
    "BOARDS_POOLED",
    "CONFIDENCE",
    "CONTEXT",
    "DIFFERENT_GPUS",
    "NORMAL95",
    "NO_BITS",
    "NO_INSTANTS",
    "PROMPTS",
    "QUESTIONS",
    "ROOM_C",
    "SECONDS",
    "SPEED",
    "TEMPERATURE_COEFFICIENT",
    "T_FACTORS",
    "WINDOWS",
    "AnswerFigures",
    "Answers",
    "Bins",
    "Budget",
    "Compute",
    "Difference",
    "Drafts",
    "EnergyResult",
    "Entry",
    "Figure",
    "Goodput",
    "GpuResult",
    "Instants",
    "Interval",
    "Joules",
    "ListedProcess",
    "Measured",
    "MeteredWork",
    "NoWindowError",
    "NotIncluded",
    "PassMix",
    "Performance",
    "Phases",
    "Procedure",
    "Quality",
    "Quantiles",
    "Restarts",
    "Roofline",
    "SpanJoules",
    "TaskFigures",
    "Window",
    "WindowCheck",
    "WindowFigure",
    "Work",
    "budget",
    "by_restart",
    "compute",
    "costs",
    "cross_check",
    "difference",
    "differing",
    "draw_of_speed",
    "everything",
    "goodput",
    "gpu_results",
    "half_width",
    "holm",
    "idle_baselines",
    "idle_energy_j",
    "is_long_enough",
    "listed_processes",
    "measured_budget",
    "measured_energy",
    "multi_gpu",
    "paired_difference",
    "performance",
    "phases",
    "pooled_deviation",
    "procedure",
    "quality",
    "quantiles",
    "required_conditions",
    "rounds_of",
    "serving",
    "since_arrival_s",
    "t_factor",
    "token_disagreements",
    "tpot_s",
    "undeclared_answers",
    "undrained",
    "window_of",
    "work_done",
]
