"""Every check that needs no runner, before anything is made, downloaded or started."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError, WattdockError
from wattdock.host import Machine, choose_gpus, folders, inventory, leases
from wattdock.inputs import WEIGHTS_ONLY, check_model, check_prompts, known_figures, memory_fit
from wattdock.launch import choose_launcher, find_runner
from wattdock.launch.images import lock_path, read_lock
from wattdock.metering import choose_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory
    from wattdock.inputs import Demand, MemoryFit
    from wattdock.launch import Launcher, LauncherChoice
    from wattdock.launch.images import ReadLock
    from wattdock.metering import Meter, MeterChoice

# A runner that has just ended may be on its GPU for a moment still.
TEARDOWN_S, TEARDOWN_POLL_S = 5.0, 0.5


@dataclass(frozen=True)
class Host:
    """This machine as it was before anything was started: its GPUs, and who holds a lease on what."""

    inventory: GpuInventory
    holders: Mapping[str, leases.Holder]

    @cached_property
    def lock(self) -> ReadLock:
        """The lock of images as it was when the first experiment asked for it: all of a run start what it says.

        Raises:
            ConfigError: It is not there, or does not hold what a lock holds.
        """
        return read_lock(lock_path())


def survey() -> Host:
    """Look at this machine once, for all experiments.

    Raises:
        PreflightError: The driver cannot be talked to, or there is no folder for leases.
    """
    return Host(inventory(), leases.holders())


@dataclass(frozen=True)
class ExecutionPlan:
    """An experiment that this machine can run, and what was decided about how.

    Attributes:
        inventory: Every GPU of the host, and the driver's versions.
        gpus: The GPUs it is to run on; empty for the CPU.
        launch: How runners are started.
        meter: Which meter, and why.
        variables: Engine settings that reach its runner from the environment here; "set" for what may be secret.
        memory: Whether the model fits, as far as that is known; None on the CPU.
    """

    config: ExperimentConfig
    machine: Machine
    inventory: GpuInventory
    gpus: tuple[Gpu, ...]
    launch: LauncherChoice
    meter: MeterChoice
    variables: Mapping[str, str] = field(default_factory=dict)
    memory: str | None = None

    def on(self, found: GpuInventory) -> ExecutionPlan:
        """Return it with the GPUs in their present state; as it was where one is gone, which its runner will find."""
        now = {gpu.uuid: gpu for gpu in found.gpus}
        if any(gpu.uuid not in now for gpu in self.inventory.gpus):
            return self
        return replace(self, inventory=found, gpus=tuple(now[gpu.uuid] for gpu in self.gpus))

    @property
    def decisions(self) -> str:
        """Which launcher and meter, why, what would change the launcher, and what a locked runner gets besides."""
        launcher = f"launcher: {self.launch.name} ({self.launch.reason}; change with {self.launch.change})"
        passing = " ".join(f"{name}={value}" for name, value in self.variables.items())
        # A pinned image is half of what decides how an engine runs.
        told = f"; variables that reach the runner: {passing}" if passing and self.launch.pin else ""
        return f"{launcher}; meter: {self.meter.name} ({self.meter.reason}){told}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes its GPUs a bad group."""
        return self.inventory.warnings(self.gpus)

    @property
    def lease_names(self) -> tuple[str, ...]:
        """What it needs for itself."""
        return tuple(gpu.uuid for gpu in self.gpus) or (leases.CPU,)

    @property
    def runner_dir(self) -> Path:
        """The folder with the backend's code."""
        return self.launch.runner_dir

    def launcher(self, say: Callable[[str], None]) -> AbstractContextManager[Launcher]:
        """Return a context that yields the launcher; an environment that it needs is made first."""
        return self.launch.launcher(self.config.container, on_gpu=bool(self.gpus), say=say)

    def new_meter(self) -> Meter:
        """Return a meter that has not been started."""
        return self.meter.new_meter()


def preflight(config: ExperimentConfig, host: Host, *, output_dir: Path, home: Path) -> ExecutionPlan:
    """Check everything that needs no runner.

    Raises:
        ConfigError: What was written names something that does not exist.
        PreflightError: This machine cannot do it.
    """
    find_runner(config.backend)
    check_model(config.model)
    if config.model.shape is not None:
        config.section.require_drawable()
    check_prompts(config.prompts, has_tokenizer=config.model.shape is None)
    found = host.inventory
    fit = _memory_fit(config, found, WEIGHTS_ONLY)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = choose_gpus(config, found, visible=visible, leases=host.holders, weight_bytes=fit.weight_bytes)
    folders.require_writable(output_dir, setting="--output-dir")
    folders.require_writable(home, setting="WATTDOCK_HOME")
    launch = choose_launcher(config, on_gpu=bool(gpus), home=home, lock=lambda: host.lock)
    return ExecutionPlan(
        config=config,
        machine=Machine.here(),
        inventory=found,
        gpus=gpus,
        launch=launch,
        meter=choose_meter(config.meter, found),
        variables=launch.variables,
    )


def _memory_fit(config: ExperimentConfig, found: GpuInventory, demand: Demand | None = None) -> MemoryFit:
    """Refuse what cannot fit any GPU here, before one is chosen; `demand` is the workload's own unless given."""
    sizes_bytes = [gpu.vram_total_bytes for gpu in found.gpus if gpu.vram_total_bytes is not None]
    memory_bytes = max(sizes_bytes, default=None) if config.accelerator != "cpu" else None
    figures = known_figures(config.model)
    return memory_fit(config, figures, gpus=config.gpus_asked, memory_bytes=memory_bytes, demand=demand)


def preflight_each(
    experiments: Sequence[ExperimentConfig], *, output_dir: Path, home: Path
) -> list[ExecutionPlan | WattdockError]:
    """Check every experiment; what several of them share is checked once.

    Returns:
        For each experiment what was decided, or why it cannot run here.

    Raises:
        PreflightError: As `survey` does.
    """
    host = survey()
    seen: dict[tuple[str, str], ExecutionPlan | WattdockError] = {}
    for one in experiments:
        if (key := _checked_key(one)) not in seen:
            seen[key] = _checked(one, host, output_dir=output_dir, home=home)
    return [_for_its_workload(one, seen[_checked_key(one)], host) for one in experiments]


def _for_its_workload(
    config: ExperimentConfig, checked: ExecutionPlan | WattdockError, host: Host
) -> ExecutionPlan | WattdockError:
    """What was checked of several experiments, with what only one of them asks of memory."""
    if not isinstance(checked, ExecutionPlan):
        return checked
    try:
        memory = _memory_fit(config, host.inventory).note if checked.gpus else None
    except WattdockError as error:
        return error
    return replace(checked, config=config, memory=memory)


def _checked_key(config: ExperimentConfig) -> tuple[str, str]:
    """Return what is equal for experiments that pass or fail preflight together."""
    return config.load_key, config.prompts.model_dump_json()


def _checked(config: ExperimentConfig, host: Host, *, output_dir: Path, home: Path) -> ExecutionPlan | WattdockError:
    try:
        return preflight(config, host, output_dir=output_dir, home=home)
    except WattdockError as error:
        return error


def require_still_free(experiments: Sequence[ExecutionPlan]) -> None:
    """See, once the leases are held, that nobody came between the first look and now.

    Raises:
        PreflightError: One of the GPUs chosen is in use; names by whom.
    """
    chosen = {gpu.uuid for one in experiments for gpu in one.gpus}
    deadline_s = time.monotonic() + TEARDOWN_S
    while chosen:
        found = inventory()
        occupied = [
            f"GPU {gpu.index}: {why}" for gpu in found.gpus if gpu.uuid in chosen and (why := found.why_occupied(gpu))
        ]
        if not occupied:
            return
        if time.monotonic() > deadline_s:
            raise PreflightError(f"{'; '.join(occupied)}; choose others with gpus")
        time.sleep(TEARDOWN_POLL_S)
