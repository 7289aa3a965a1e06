"""Energy of GPUs over time: read it on the host, and say what any interval cost.

In: GPUs by UUID, a clock. Out: a `Meter` records a `Timeline`; `EnergyCurve` turns it and a `Span` into joules and
their timing uncertainty.
Another counter of GPUs is a file NAME.py here, whose `SOURCE` is a class derived from `source.Source`, and a value NAME
of the setting `meter`. GPUs that NVML does not list begin in `host.GpuInventory`.
Must not know: runners, experiments, results.
"""

from wattdock.metering.choice import MeterChoice, choose_meter
from wattdock.metering.curve import EnergyCurve, SpanEnergy
from wattdock.metering.meter import Meter
from wattdock.metering.timeline import GpuTimeline, MeterEvent, Span, Timeline

__all__ = [
    "EnergyCurve",
    "GpuTimeline",
    "Meter",
    "MeterChoice",
    "MeterEvent",
    "Span",
    "SpanEnergy",
    "Timeline",
    "choose_meter",
]
