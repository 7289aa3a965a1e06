"""How this machine would run experiments, and how long that takes; what cannot run is refused before anything starts.

In: experiments and this machine. Out: an `ExecutionPlan` for each, or why it cannot run here; a `Forecast`.
Must not know: how experiments are run, how anything is printed.
"""

from wattdock.planning.forecast import (
    Forecast,
    Remaining,
    duration,
    earlier_pass_s,
    forecast,
    load_groups,
    pass_seconds,
)
from wattdock.planning.gpu_choice import choose_gpus
from wattdock.planning.preflight import ExecutionPlan, plan_study, preflight, require_inputs

__all__ = [
    "ExecutionPlan",
    "Forecast",
    "Remaining",
    "choose_gpus",
    "duration",
    "earlier_pass_s",
    "forecast",
    "load_groups",
    "pass_seconds",
    "plan_study",
    "preflight",
    "require_inputs",
]
