"""This machine: its GPUs and how they are linked, its processes, who measures on it, and where files go.

In: NVML, /proc, the environment; an experiment, to choose GPUs for it. Out: a `GpuInventory` of `Gpu`s (results store
the same class), the GPUs an experiment gets, leases on them. `nvml` wraps NVML's calls for the meter, `gpu_models` has
published peak rates, `processes` says whose work loads the CPUs, `folders` where models and scratch files are kept
and made.
Must not know: runners, containers, meters, results.
"""

from wattdock.host import folders, gpu_models, leases, nvml, processes
from wattdock.host.gpu import Gpu, GpuProcess, Link
from wattdock.host.gpu_inventory import GpuInventory
from wattdock.host.machine import Machine

__all__ = [
    "Gpu",
    "GpuInventory",
    "GpuProcess",
    "Link",
    "Machine",
    "folders",
    "gpu_models",
    "leases",
    "nvml",
    "processes",
]
