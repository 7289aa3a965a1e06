"""Look at everything that a measurement rests on; the one place that knows all of doctor's checks."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.checks.check import failed, passed, refused, warned
from wattdock.checks.doctor_gpus import counter_check, driver_check, gpu_checks, group_checks
from wattdock.checks.doctor_machine import container_checks, machine_checks
from wattdock.checks.preflight import preflight
from wattdock.errors import PreflightError, WattdockError
from wattdock.host import choose_gpus, inventory, leases
from wattdock.launch import LaunchSpec
from wattdock.metering import choose_meter
from wattdock.runner import RunnerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock.analysis import Check
    from wattdock.checks.preflight import ExecutionPlan
    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory

RECORDED_S = 2.0
DIAGNOSE_S = 300.0


def examine(
    config: ExperimentConfig, *, output_dir: Path, home: Path, with_engine: bool, say: Callable[[str], None]
) -> Iterable[Check]:
    """Yield every check, as soon as its outcome is known.

    Args:
        config: Which backend, which GPUs, how to start it.
        with_engine: Start the backend's runner and ask it too.
    """
    has_gpus = False
    try:
        found = inventory()
    except PreflightError as error:
        yield refused("driver", error, "see that nvidia-smi works on this host")
    else:
        has_gpus = bool(found.gpus)
        yield driver_check(found)
        yield from _gpus(config, found)
    yield from machine_checks(output_dir, os.environ)
    yield from container_checks(config.backend, gpus=has_gpus)
    if with_engine:
        try:
            [plan] = preflight([config], output_dir=output_dir, home=home)
            if isinstance(plan, WattdockError):
                raise plan
            yield from _engine(plan, say)
        except WattdockError as error:
            yield refused(config.backend, error)


def named_gpus(config: ExperimentConfig, found: GpuInventory) -> Sequence[Gpu]:
    """Return the GPUs that a configuration names; all where it names none."""
    if not isinstance(config.gpus, list):
        return found.gpus
    return [gpu for gpu in found.gpus if gpu.index in config.gpus or gpu.uuid in config.gpus]


def _gpus(config: ExperimentConfig, found: GpuInventory) -> Iterable[Check]:
    for lost in found.unreadable:
        yield failed("GPU lost", lost, "reset it or restart the machine; dmesg names the Xid")
    gpus = named_gpus(config, found)
    for wanted in config.gpus if isinstance(config.gpus, list) else ():
        if not any(wanted in (gpu.index, gpu.uuid) for gpu in found.gpus):
            yield failed(f"GPU {wanted}", "there is none", "wattdock gpus lists those that are here")
    chosen: Sequence[Gpu] = gpus
    if gpus and not isinstance(config.gpus, list) and config.accelerator != "cpu":
        choice, chosen = _chosen(config, found, os.environ.get("CUDA_VISIBLE_DEVICES"))
        yield choice
    for gpu in gpus:
        yield from _softened(gpu_checks(gpu, found), used=gpu in chosen)
    yield from group_checks(gpus, found)
    if gpus:
        meter = choose_meter("nvml", found).new_meter()
        meter.start()
        time.sleep(RECORDED_S)
        timeline = meter.stop()
        for gpu in gpus:
            yield from _softened([counter_check(gpu, timeline)], used=gpu in chosen)


def _chosen(config: ExperimentConfig, found: GpuInventory, visible: str | None) -> tuple[Check, Sequence[Gpu]]:
    """Which GPUs a measurement here would choose; all of them count where it would choose none."""
    try:
        chosen = choose_gpus(config, found, visible=visible)
    except PreflightError as error:
        return refused("GPUs chosen", error), found.gpus
    if not chosen:
        remedy = "unset CUDA_VISIBLE_DEVICES, or name in it what is here"
        return failed("GPUs chosen", f"none: CUDA_VISIBLE_DEVICES={visible}", remedy), found.gpus
    return passed("GPUs chosen", f"{', '.join(str(gpu.index) for gpu in chosen)}, as free; others with --gpus"), chosen


def _softened(checks: Iterable[Check], *, used: bool) -> Iterable[Check]:
    """Failures of a GPU that a measurement here would not choose become warnings."""
    soften = {"status": "warn"}
    return (check.model_copy(update=soften) if check.status == "fail" and not used else check for check in checks)


def _engine(plan: ExecutionPlan, say: Callable[[str], None]) -> Iterable[Check]:
    """What the backend's runner says, started as for a measurement and holding its leases.

    Raises:
        WattdockError: The leases cannot be had, or the runner cannot be started or asked.
    """
    config = plan.config
    wanted = leases.LeaseRequest(plan.lease_names, config.exclusive, "doctor", config.wait_s)
    with ExitStack() as stack:
        lease_fds = stack.enter_context(leases.held(wanted, say))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = stack.enter_context(plan.launcher(say))
        spec = LaunchSpec(
            backend=config.backend,
            runner_dir=plan.launch.runner_dir,
            log_path=folder / "runner.log",
            gpu_indices=tuple(gpu.index for gpu in plan.gpus),
            gpu_uuids=tuple(gpu.uuid for gpu in plan.gpus),
            labels={"experiment": "doctor"},
            lease_fds=lease_fds,
        )
        client = stack.enter_context(RunnerClient(stack.enter_context(launcher.launch(spec))))
        described = client.wait_ready(config.timeouts.launch_s)
        yield passed(config.backend, f"{described.framework} {described.framework_version}")
        trip_ns = client.check_clock().round_trip_ns
        yield passed("runner's clock", f"the host's, to within {trip_ns / 1e6:.2f} ms")
        for found in client.diagnose(DIAGNOSE_S):
            if found.status == "ok":
                yield passed(found.name, found.value)
            else:
                yield (failed if found.status == "fail" else warned)(found.name, found.value, found.advice)
