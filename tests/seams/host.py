"""What tests reach behind the door of `host`: a name that moves is changed here only."""

from wattdock.host.folders import build_once
from wattdock.host.gpu import GpuActivity
from wattdock.host.gpu_models import Peak, peak_of, why_no_peak
from wattdock.host.leases import CPU, MACHINE, HeldLeases, Holder, LeaseRequest, hold, holders
from wattdock.host.machine import CODE_FOLDERS, checkout
from wattdock.host.nvml import NvmlError
from wattdock.host.processes import CpuTimes, cpu_times, times_around, user_name

__all__ = [
    "CODE_FOLDERS",
    "CPU",
    "MACHINE",
    "CpuTimes",
    "GpuActivity",
    "HeldLeases",
    "Holder",
    "LeaseRequest",
    "NvmlError",
    "Peak",
    "build_once",
    "checkout",
    "cpu_times",
    "hold",
    "holders",
    "peak_of",
    "times_around",
    "user_name",
    "why_no_peak",
]
