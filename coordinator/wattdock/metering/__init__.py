"""metering."""

from wattdock.metering.calibration import MeterCard, Pulse, load_cards, with_cards
from wattdock.metering.choice import MeterChoice, choose_meter
from wattdock.metering.curve import COUNTER_LAG, MAX_GAP_S, MJ_PER_J, POWER_LAG, EnergyCurve, SpanEnergy, span_energy
from wattdock.metering.excerpt import excerpt
from wattdock.metering.findings import period_s
from wattdock.metering.nvml import NvmlMeter
from wattdock.metering.protocol import Meter
from wattdock.metering.timeline import GpuProcess, GpuTimeline, LagModel, Series, Span, Ticks, Timeline, Window

__all__ = [
    "COUNTER_LAG",
    "MAX_GAP_S",
    "MJ_PER_J",
    "POWER_LAG",
    "EnergyCurve",
    "GpuProcess",
    "GpuTimeline",
    "LagModel",
    "Meter",
    "MeterCard",
    "MeterChoice",
    "NvmlMeter",
    "Pulse",
    "Series",
    "Span",
    "SpanEnergy",
    "Ticks",
    "Timeline",
    "Window",
    "choose_meter",
    "excerpt",
    "load_cards",
    "period_s",
    "span_energy",
    "with_cards",
]
