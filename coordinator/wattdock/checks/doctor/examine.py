"""Look at everything that a measurement rests on; the one place that knows all checks."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from wattdock.checks.doctor.containers import container_findings
from wattdock.checks.doctor.engine import engine_findings
from wattdock.checks.doctor.finding import fail, ok
from wattdock.checks.doctor.gpus import counter_findings, driver_finding, gpu_findings, link_findings
from wattdock.checks.doctor.machine import machine_findings
from wattdock.checks.preflight import preflight, survey
from wattdock.errors import PreflightError, WattdockError
from wattdock.host import choose_gpus, inventory
from wattdock.metering import NvmlMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from wattdock.checks.doctor.finding import Finding
    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory

RECORDED_S = 2.0


def examine(
    config: ExperimentConfig, *, output_dir: Path, home: Path, with_engine: bool, say: Callable[[str], None]
) -> Iterable[Finding]:
    """Yield every finding, as soon as it is known.

    Args:
        config: Which backend, which GPUs, how to start it.
        with_engine: Start the backend's runner and ask it too.
    """
    found = _inventory()
    if isinstance(found, str):
        yield fail("driver", found, "see that nvidia-smi works on this host")
    else:
        yield driver_finding(found)
        yield from _gpus(config, found)
    yield from machine_findings(output_dir, os.environ)
    has_gpus = not isinstance(found, str) and bool(found.gpus)
    yield from container_findings(config.backend, gpus=has_gpus)
    if with_engine:
        yield from _engine(config, output_dir=output_dir, home=home, say=say)


def _inventory() -> GpuInventory | str:
    try:
        return inventory()
    except PreflightError as error:
        return str(error)


def _gpus(config: ExperimentConfig, found: GpuInventory) -> Iterable[Finding]:
    for one in found.unreadable:
        yield fail("GPU lost", one, "reset it or restart the machine; dmesg names the Xid")
    gpus = gpus_asked(config, found)
    for wanted in config.gpus if isinstance(config.gpus, list) else ():
        if not any(wanted in (gpu.index, gpu.uuid) for gpu in found.gpus):
            yield fail(f"GPU {wanted}", "there is none", "wattdock gpus lists those that are here")
    chosen: Sequence[Gpu] = gpus
    if gpus and not isinstance(config.gpus, list) and config.accelerator != "cpu":
        choice, chosen = _chosen(config, found, os.environ.get("CUDA_VISIBLE_DEVICES"))
        yield choice
    for gpu in gpus:
        yield from _for_its_use(gpu_findings(gpu, found), used=gpu in chosen)
    yield from link_findings(gpus, found)
    if gpus:
        meter = NvmlMeter()
        meter.start()
        time.sleep(RECORDED_S)
        timeline = meter.stop()
        for gpu in gpus:
            yield from _for_its_use(counter_findings([gpu], timeline), used=gpu in chosen)


def _chosen(config: ExperimentConfig, found: GpuInventory, visible: str | None) -> tuple[Finding, Sequence[Gpu]]:
    """Which GPUs a measurement here would take by itself; where it would take none, all of them count."""
    try:
        chosen = choose_gpus(config, found, visible=visible)
    except PreflightError as error:
        seen, _, advice = str(error).partition("; ")
        return fail("GPUs chosen", seen, advice), found.gpus
    if not chosen:
        advice = "unset CUDA_VISIBLE_DEVICES, or name in it what is here"
        return fail("GPUs chosen", f"none: CUDA_VISIBLE_DEVICES={visible}", advice), found.gpus
    return ok("GPUs chosen", f"{', '.join(str(gpu.index) for gpu in chosen)}, as free; others with --gpus"), chosen


def _for_its_use(findings: Iterable[Finding], *, used: bool) -> Iterable[Finding]:
    """What spoils a GPU that a measurement here would not take anyway is only good to know."""
    return (replace(one, status="warn") if one.status == "fail" and not used else one for one in findings)


def gpus_asked(config: ExperimentConfig, found: GpuInventory) -> Sequence[Gpu]:
    """Return the GPUs named; all where none are."""
    if not isinstance(config.gpus, list):
        return found.gpus
    return [gpu for gpu in found.gpus if gpu.index in config.gpus or gpu.uuid in config.gpus]


def _engine(config: ExperimentConfig, *, output_dir: Path, home: Path, say: Callable[[str], None]) -> Iterable[Finding]:
    try:
        ready = preflight(config, survey(), output_dir=output_dir, home=home)
        yield from engine_findings(ready, say)
    except WattdockError as error:
        seen, _, advice = str(error).partition("; ")
        yield fail(config.backend, seen, advice or "see the lines above")
