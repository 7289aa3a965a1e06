"""How this machine would run experiments, and how long that takes; what cannot run is refused before anything starts.

In: experiments and this machine. Out: an `ExecutionPlan` for each, or why it cannot run here; a `Forecast`.
Must not know: how experiments are run, how anything is printed.
"""

from wattdock.planning import eta
from wattdock.planning.eta import Forecast, forecast, load_groups
from wattdock.planning.gpu_choice import GpuChoice
from wattdock.planning.other_node import OtherNode
from wattdock.planning.preflight import ExecutionPlan, plan_study, preflight, require_inputs

__all__ = [
    "ExecutionPlan",
    "Forecast",
    "GpuChoice",
    "OtherNode",
    "eta",
    "forecast",
    "load_groups",
    "plan_study",
    "preflight",
    "require_inputs",
]
