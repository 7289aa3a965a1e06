"""host."""

from wattdock.host.activity import GpuActivity, owner_of
from wattdock.host.code import checkout
from wattdock.host.cpus import PROC, cpu_times, process_times, times_around
from wattdock.host.folders import SCRATCH_LOCK, require_writable, scratch_folder, wattdock_home
from wattdock.host.gpu_models import GpuModel, gpu_model, gpu_models
from wattdock.host.gpus import GpuInfo, GpuInventory, inventory, list_gpus
from wattdock.host.lease_location import is_shared, lease_folder
from wattdock.host.leases import CPU, MACHINE, Holder, Wanted, held, holders
from wattdock.host.machine import Machine, describe_machine
from wattdock.host.peaks import peak_of, why_no_peak
from wattdock.host.selection import Surroundings, choose_gpus, gpu_warnings, gpus_asked, why_occupied
from wattdock.host.topology import MEANING, Link, links_among, slow_links

__all__ = [
    "CPU",
    "MACHINE",
    "MEANING",
    "PROC",
    "SCRATCH_LOCK",
    "GpuActivity",
    "GpuInfo",
    "GpuInventory",
    "GpuModel",
    "Holder",
    "Link",
    "Machine",
    "Surroundings",
    "Wanted",
    "checkout",
    "choose_gpus",
    "cpu_times",
    "describe_machine",
    "gpu_model",
    "gpu_models",
    "gpu_warnings",
    "gpus_asked",
    "held",
    "holders",
    "inventory",
    "is_shared",
    "lease_folder",
    "links_among",
    "list_gpus",
    "owner_of",
    "peak_of",
    "process_times",
    "require_writable",
    "scratch_folder",
    "slow_links",
    "times_around",
    "wattdock_home",
    "why_no_peak",
    "why_occupied",
]
