"""What an inventory and a short recording of the GPUs mean for a measurement. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.checks.check import failed, passed, warned
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import Check
    from wattdock.host import Gpu, GpuInventory
    from wattdock.metering import Timeline

# Seen on an H200 were 100 ms; a counter that steps this seldom leaves few steps in a pass.
SLOW_COUNTER_S = 1.0
MAX_BUSY_SHARE = 0.5
NS_PER_MS = 1e6
# Source: NVIDIA CUDA GPUs list: compute capability 12.x is consumer and workstation Blackwell, without NVLink.
CONSUMER_BLACKWELL = "12."


def driver_check(found: GpuInventory) -> Check:
    """Return whether there is a driver, and which."""
    if not found.gpus:
        seen = "; ".join(found.unreadable) or found.reason or "no GPU"
        return failed("driver", seen, "without a GPU wattdock measures speed, not energy; see that nvidia-smi works")
    first = found.gpus[0]
    versions = f"{first.driver_version}, NVML {first.nvml_version}, CUDA up to {first.cuda_driver_version}"
    return passed("driver", f"{versions}, {pluralize(len(found.gpus), 'GPU')}")


def gpu_checks(gpu: Gpu, found: GpuInventory) -> Iterable[Check]:
    """Yield what one GPU's settings and its users mean for a measurement."""
    name, smi = f"GPU {gpu.index}", f"as root: nvidia-smi -i {gpu.index}"
    activity = found.activity.get(gpu.uuid)
    if occupied := found.why_occupied(gpu):
        yield failed(f"{name} in use", occupied, "wait for it to end, or choose other GPUs with --gpus")
    elif activity and activity.processes:
        seen = ", ".join(map(str, activity.processes))
        yield warned(f"{name} in use", f"a display: {seen}", "measure on a GPU without a display")
    else:
        yield passed(f"{name} in use", f"by nobody; {gpu.name}")
    if gpu.mig:
        yield failed(f"{name} MIG", f"on, slices: {', '.join(gpu.mig_slices) or 'none'}", f"{smi} -mig 0")
    if gpu.persistence is False:
        seen = "off: the driver may unload, and the counter start again at 0"
        yield warned(f"{name} persistence", seen, f"{smi} -pm 1")
    yield _power_limit(gpu)
    if activity and activity.clocks_limited:
        seen = "held down by a setting (locked or application clocks)"
        yield warned(f"{name} clocks", seen, f"unless intended, {smi} -rgc; nvidia-smi -i {gpu.index} -rac")
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        seen = f"×{gpu.pcie_width} of ×{gpu.pcie_width_max} lanes"
        yield warned(f"{name} PCIe", seen, "reseat the board or look at the slot; loading is slower")


def _power_limit(gpu: Gpu) -> Check:
    name, limit_w, default_w = f"GPU {gpu.index} power limit", gpu.power_limit_w, gpu.power_limit_default_w
    if limit_w is None or default_w is None:
        return warned(name, "the driver does not tell it", "state the limit yourself where you publish")
    if limit_w != default_w:
        remedy = f"unless intended, as root: nvidia-smi -i {gpu.index} -pl {default_w:.0f}"
        return warned(name, f"{limit_w:.0f} W, the board's default is {default_w:.0f} W", remedy)
    return passed(name, f"{limit_w:.0f} W, the board's default")


def counter_check(gpu: Gpu, timeline: Timeline) -> Check:
    """Return how well a GPU's energy can be read, from a recording of a few seconds."""
    name, seen = f"GPU {gpu.index} energy counter", timeline.gpus.get(gpu.uuid)
    if seen is None or seen.energy_source != "counter":
        events = "; ".join(event.message for event in seen.events) if seen else timeline.reason or "not metered"
        return failed(name, events or "none", "energy would be integrated power, which is not publishable")
    if seen.period_s is None:
        return failed(name, "it does not step", "use the GPU for a moment and look again; else reload the driver")
    share, ticks = seen.busy_fraction or 0.0, seen.ticks
    before_ns, after_ns = ticks.before_end_ns - ticks.before_start_ns, ticks.after_end_ns - ticks.after_start_ns
    reads_ms = np.concatenate([before_ns, after_ns]) / NS_PER_MS
    figure = (
        f"steps every {seen.period_s * 1e3:.0f} ms, one read takes {np.median(reads_ms):.1f} ms "
        f"(longest {reads_ms.max():.1f}), {share:.1%} of the meter's time goes into NVML"
    )
    if seen.period_s > SLOW_COUNTER_S or share > MAX_BUSY_SHARE:
        return warned(name, figure, "make passes longer: workload.min_duration_s")
    return passed(name, figure)


def group_checks(gpus: Sequence[Gpu], found: GpuInventory) -> Iterable[Check]:
    """Yield how well a group of GPUs works together."""
    for line in found.warnings(gpus):
        yield warned("GPU group", line, "choose GPUs of one model and well linked with --gpus, or run a copy on each")
    index = {gpu.uuid: gpu.index for gpu in gpus}
    links = found.links_among(index.keys())
    if barred := [f"{index[link.a]}-{index[link.b]}" for link in links if link.peer_access is False]:
        yield warned("peer access", f"not between {', '.join(barred)}", "set NCCL_P2P_DISABLE=1 should NCCL hang")
    consumer = [gpu for gpu in gpus if (gpu.compute_capability or "").startswith(CONSUMER_BLACKWELL)]
    if len(consumer) > 1 and not any(link.nvlinks for link in links):
        seen = f"{len(consumer)} × {consumer[0].name}: consumer Blackwell without NVLink"
        hangs = "tensor parallelism over peer-to-peer PCIe has been seen to hang there"
        yield warned("tensor parallelism", seen, f"{hangs}: take pipeline parallelism or one copy per GPU")
