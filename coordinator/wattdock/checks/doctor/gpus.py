"""What an inventory and a short recording show of the GPUs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.checks.doctor.finding import fail, ok, warn
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.checks.doctor.finding import Finding
    from wattdock.host import Gpu, GpuInventory
    from wattdock.metering import GpuTimeline, Ticks, Timeline

# Seen on an H200 were 100 ms; a counter that steps this seldom leaves few ticks in a pass.
SLOW_COUNTER_S = 1.0
MAX_BUSY_SHARE = 0.5
MS_PER_S, NS_PER_MS = 1e3, 1e6
# Source: NVIDIA CUDA GPUs list: compute capability 12.x is consumer and workstation Blackwell, without NVLink.
CONSUMER_BLACKWELL = "12."


def driver_finding(found: GpuInventory) -> Finding:
    """Return whether there is a driver, and which."""
    if not found.gpus:
        seen = "; ".join(found.unreadable) or found.reason or "no GPU"
        return fail("driver", seen, "without a GPU wattdock measures speed, not energy; see that nvidia-smi works")
    first = found.gpus[0]
    versions = f"{first.driver_version}, NVML {first.nvml_version}, CUDA up to {first.cuda_driver_version}"
    return ok("driver", f"{versions}, {pluralize(len(found.gpus), 'GPU')}")


def gpu_findings(gpu: Gpu, found: GpuInventory) -> Iterable[Finding]:
    """Yield what one GPU's settings and its users mean for a measurement."""
    name = f"GPU {gpu.index}"
    yield _occupied(gpu, found)
    if gpu.mig:
        slices = ", ".join(gpu.mig_slices) or "none"
        yield fail(f"{name} MIG", f"on, slices: {slices}", f"as root: nvidia-smi -i {gpu.index} -mig 0")
    if gpu.persistence is False:
        advice = f"as root: nvidia-smi -i {gpu.index} -pm 1"
        yield warn(f"{name} persistence", "off: the driver may unload and the counter start again", advice)
    if gpu.ecc is not None:
        yield ok(f"{name} ECC", "on" if gpu.ecc else "off")
    yield _power_limit(gpu)
    activity = found.activity.get(gpu.uuid)
    if activity and activity.clocks_limited:
        advice = f"meant? else as root: nvidia-smi -i {gpu.index} -rgc; nvidia-smi -i {gpu.index} -rac"
        yield warn(f"{name} clocks", "held down by a setting (locked or application clocks)", advice)
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        seen = f"×{gpu.pcie_width} of ×{gpu.pcie_width_max} lanes"
        yield warn(f"{name} PCIe", seen, "reseat the board or look at the slot; loading is slower")


def _occupied(gpu: Gpu, found: GpuInventory) -> Finding:
    if occupied := found.why_occupied(gpu):
        return fail(f"GPU {gpu.index} in use", occupied, "wait for it to end, or choose other GPUs with --gpus")
    activity = found.activity.get(gpu.uuid)
    if activity and activity.processes:
        seen = ", ".join(map(str, activity.processes))
        return warn(f"GPU {gpu.index} in use", f"a display: {seen}", "measure on a GPU without a display")
    return ok(f"GPU {gpu.index} in use", f"by nobody; {gpu.name}")


def _power_limit(gpu: Gpu) -> Finding:
    name, limit, default = f"GPU {gpu.index} power limit", gpu.power_limit_w, gpu.power_limit_default_w
    if limit is None or default is None:
        return warn(name, "the driver does not tell it", "state the limit yourself where you publish")
    if limit != default:
        advice = f"meant? else as root: nvidia-smi -i {gpu.index} -pl {default:.0f}"
        return warn(name, f"{limit:.0f} W, the board's own is {default:.0f} W", advice)
    return ok(name, f"{limit:.0f} W, the board's own")


def counter_findings(gpus: Sequence[Gpu], timeline: Timeline) -> Iterable[Finding]:
    """Yield how well each GPU's energy can be read, from a recording of a few seconds."""
    for gpu in gpus:
        seen = timeline.gpus.get(gpu.uuid)
        name = f"GPU {gpu.index} energy counter"
        if seen is None or seen.energy_source != "counter":
            events = "; ".join(event.message for event in seen.events) if seen else timeline.reason or "not metered"
            yield fail(name, events or "none", "energy would be integrated power, which is not publishable")
        else:
            yield _counter(name, seen)


def _counter(name: str, seen: GpuTimeline) -> Finding:
    if seen.period_s is None:
        return fail(name, "it does not step", "use the GPU for a moment and look again; else reload the driver")
    share = seen.busy_fraction or 0.0
    median_ms, longest_ms = read_cost_ms(seen.ticks)
    value = (
        f"steps every {seen.period_s * MS_PER_S:.0f} ms, one read takes {median_ms:.1f} ms (longest {longest_ms:.1f}), "
        f"{share:.1%} of the meter's time goes into NVML"
    )
    if seen.period_s > SLOW_COUNTER_S or share > MAX_BUSY_SHARE:
        return warn(name, value, "make passes longer: workload.min_duration_s")
    return ok(name, value)


def read_cost_ms(ticks: Ticks) -> tuple[float, float]:
    """Return the median and the longest time, in ms, that the reads on either side of the counter's changes took."""
    before_ns, after_ns = ticks.before_end_ns - ticks.before_start_ns, ticks.after_end_ns - ticks.after_start_ns
    costs_ms = np.concatenate([before_ns, after_ns]) / NS_PER_MS
    return float(np.median(costs_ms)), float(costs_ms.max())


def link_findings(gpus: Sequence[Gpu], found: GpuInventory) -> Iterable[Finding]:
    """Yield how a group of GPUs is linked."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    links = found.links_among(index.keys())
    for link in found.slow_links(index.keys()):
        pair = f"GPU {index[link.a]}-{index[link.b]} link"
        advice = "split a model over better linked GPUs, or run one copy on each"
        yield warn(pair, f"{link.label}: over {link.meaning}", advice)
    if links and not found.slow_links(index.keys()):
        yield ok("links", ", ".join(f"{index[link.a]}-{index[link.b]} {link.label}" for link in links))
    if barred := [f"{index[link.a]}-{index[link.b]}" for link in links if link.peer_access is False]:
        yield warn("peer access", f"not between {', '.join(barred)}", "set NCCL_P2P_DISABLE=1 should NCCL hang")
    consumer = [gpu for gpu in gpus if (gpu.compute_capability or "").startswith(CONSUMER_BLACKWELL)]
    if len(consumer) > 1 and not any(link.nvlinks for link in links):
        yield warn(
            "tensor parallelism",
            f"{len(consumer)} × {consumer[0].name}: consumer Blackwell without NVLink",
            "tensor parallelism over peer-to-peer PCIe has been seen to hang there: take pipeline parallelism or one "
            "copy per GPU",
        )
    if len(names := sorted({gpu.name for gpu in gpus})) > 1:
        yield warn("models", ", ".join(names), "measure on GPUs of one model: --gpus")
