"""Run doctor's checks: on this machine, on its GPUs and, if asked, on the backend's runner."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.audit import Outcome
from wattdock.doctor.checks import DRIVER, EACH_GPU, MACHINE, ExaminedGpu
from wattdock.errors import MeterError, PreflightError, WattdockError
from wattdock.host import GpuInventory, folders, leases
from wattdock.metering import choose_meter
from wattdock.planning import GpuChoice, preflight
from wattdock.runner import RunnerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock.analysis import Check
    from wattdock.audit import Status
    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu
    from wattdock.planning import ExecutionPlan

# How long the meter records for the checks of energy counters.
RECORDED_NS = 2_000_000_000
# How long a runner's own checks may take.
DIAGNOSE_S = 300.0
# Status of a check for each status of a runner's finding; any other status is a warning.
RUNNER_STATUS: dict[str, Status] = {"ok": "pass", "fail": "fail"}


def examine(
    config: ExperimentConfig, *, output_dir: Path, home: Path, with_engine: bool, say: Callable[[str], None]
) -> Iterable[Check]:
    """Yield every check as soon as its outcome is known; `with_engine` starts the backend's runner and asks it, too."""
    try:
        host_gpus = GpuInventory.here()
    except PreflightError as error:
        yield Outcome.of_error(error).named("driver", remedy="see that nvidia-smi works on this host")
    else:
        yield from DRIVER.run(host_gpus)
        if host_gpus.gpus:
            yield from _gpus(config, host_gpus)
    yield from MACHINE.run(Path("/"))
    if with_engine:
        try:
            [plan] = preflight([config], output_dir=output_dir, home=home)
            if isinstance(plan, WattdockError):
                raise plan
            yield from _engine(plan, say)
        except WattdockError as error:
            yield Outcome.of_error(error, "see above").named(config.backend)


def _gpus(config: ExperimentConfig, host_gpus: GpuInventory) -> Iterable[Check]:
    gpus = host_gpus.gpus
    if isinstance(config.gpus, list):
        gpus = tuple(gpu for gpu in gpus if gpu.index in config.gpus or gpu.uuid in config.gpus)
    chosen: Sequence[Gpu] = ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    remedy = "unset CUDA_VISIBLE_DEVICES, or set it to GPUs of this machine"
    choice = Outcome("fail", f"none: CUDA_VISIBLE_DEVICES={visible}", remedy=remedy)
    try:
        chosen = GpuChoice(config, host_gpus, visible).gpus()
    except PreflightError as error:
        choice = Outcome.of_error(error)
    if chosen:
        choice = Outcome("pass", f"{', '.join(str(gpu.index) for gpu in chosen)} (free; choose others with --gpus)")
    if config.accelerator != "cpu":
        yield choice.named("GPUs chosen")
    meter = choose_meter("nvml", host_gpus).new_meter()
    # A meter that did not start has a timeline without GPUs and with the reason, which fails every energy counter.
    with suppress(MeterError):
        meter.start()
    timeline = meter.stop(meter.clock.now_ns() + RECORDED_NS)
    for gpu in gpus:
        for check in EACH_GPU.run(ExaminedGpu(gpu, host_gpus, timeline), prefix=f"GPU {gpu.index} "):
            # A measurement would not use this GPU, so its failure is only a warning.
            harmless = check.status == "fail" and bool(chosen) and gpu not in chosen
            yield check.model_copy(update={"status": "warn"}) if harmless else check
    if warnings := host_gpus.warnings(gpus):
        remedy = "choose GPUs of one model and well linked with --gpus, or run a copy on each"
        yield Outcome("warn", "; ".join(warnings)).named("GPU group", remedy=remedy)


def _engine(plan: ExecutionPlan, say: Callable[[str], None]) -> Iterable[Check]:
    """Yield what the backend's runner says, started as for a measurement and holding its leases."""
    config = plan.config
    request = leases.LeaseRequest(plan.lease_names, config.exclusive, config.wait_s)
    with ExitStack() as stack:
        held = stack.enter_context(leases.hold(request, say))
        folder = stack.enter_context(folders.scratch_folder())
        launcher = stack.enter_context(plan.launcher(say))
        runner = stack.enter_context(launcher(plan.runner(folder / "runner.log", held)))
        client = stack.enter_context(RunnerClient(runner))
        described = client.wait_ready(config.timeouts.launch_s)
        yield Outcome("pass", f"{described.framework} {described.framework_version}").named(config.backend)
        trip_ns = client.check_clock().round_trip_ns
        yield Outcome("pass", f"the host's, to within {trip_ns / 1e6:.2f} ms").named("runner's clock")
        for finding in client.diagnose(DIAGNOSE_S):
            yield Outcome(RUNNER_STATUS.get(finding.status, "warn"), finding.value).named(
                finding.name, remedy=finding.advice
            )
