"""What tests reach behind the door of `metering`: a name that moves is changed here only."""

from wattdock.metering import meter, zeus
from wattdock.metering.choice import WITHOUT_GPU, source_class
from wattdock.metering.curve import COUNTER_LAG
from wattdock.metering.meter import PEEK_PATIENCE_NS, PEEK_POLL_S
from wattdock.metering.meter_events import timeline_events
from wattdock.metering.node_clock import Exchange, NodeClock, on_this_clock, pid_here
from wattdock.metering.nvml import NvmlSource, counter_boundary, nvml_reader
from wattdock.metering.power_profile import SAMPLE_LAG, EnergyInterpolation, resolution_mj, tick_instants
from wattdock.metering.rapl import Domain, RaplRecorder, find_domains
from wattdock.metering.sampler import ENERGY_COUNTER, POWER_SAMPLES, GpuSampler, Recording
from wattdock.metering.samples import DriverSamples
from wattdock.metering.source import GpuReader, PowerRead, Source
from wattdock.metering.tick_schedule import TickSchedule
from wattdock.metering.timeline import (
    HBM_POWER,
    SAMPLES,
    HostTimeline,
    LagModel,
    ProcessSample,
    Series,
    Ticks,
    Window,
)
from wattdock.metering.zeus import ZeusSource

__all__ = [
    "COUNTER_LAG",
    "ENERGY_COUNTER",
    "HBM_POWER",
    "PEEK_PATIENCE_NS",
    "PEEK_POLL_S",
    "POWER_SAMPLES",
    "SAMPLES",
    "SAMPLE_LAG",
    "WITHOUT_GPU",
    "Domain",
    "DriverSamples",
    "EnergyInterpolation",
    "Exchange",
    "GpuReader",
    "GpuSampler",
    "HostTimeline",
    "LagModel",
    "NodeClock",
    "NvmlSource",
    "PowerRead",
    "ProcessSample",
    "RaplRecorder",
    "Recording",
    "Series",
    "Source",
    "TickSchedule",
    "Ticks",
    "Window",
    "ZeusSource",
    "counter_boundary",
    "find_domains",
    "meter",
    "nvml_reader",
    "on_this_clock",
    "pid_here",
    "resolution_mj",
    "source_class",
    "tick_instants",
    "timeline_events",
    "zeus",
]
