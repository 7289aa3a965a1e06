"""Every check that needs no runner, before anything is made, downloaded or started."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError, WattdockError
from wattdock.host import (
    CPU,
    Surroundings,
    choose_gpus,
    describe_machine,
    gpu_warnings,
    gpus_asked,
    holders,
    inventory,
    require_writable,
    why_occupied,
)
from wattdock.inputs import WEIGHTS_ONLY, check_model, check_prompts, known_figures, memory_fit
from wattdock.launch import (
    DockerLauncher,
    LaunchSpec,
    NoContainersError,
    ProcessLauncher,
    check_python,
    environment_in_use,
    find_containers,
    find_locked,
    find_runner,
    given_settings,
    lock_path,
    make_socket_folder,
    read_lock,
)
from wattdock.metering import choose_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.host import GpuInfo, GpuInventory, Holder, Machine
    from wattdock.inputs import Demand, MemoryFit
    from wattdock.launch import Containers, Launcher, Pin, ReadLock, Variant
    from wattdock.metering import Meter, MeterChoice

# A runner that has just ended may be on its GPU for a moment still.
TEARDOWN_S, TEARDOWN_POLL_S = 5.0, 0.5


@dataclass(frozen=True)
class Host:
    """This machine as it was before anything was started: its GPUs, and who holds a lease on what."""

    inventory: GpuInventory
    leases: Mapping[str, Holder]

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
    return Host(inventory(), holders())


@dataclass(frozen=True)
class LauncherChoice:
    """How runners are started, and why so.

    Attributes:
        change: What a person would do to have it otherwise.
        containers: The engine and the image, for "docker".
        pin: By what the image was pinned; None for one that was taken by its name.
    """

    name: str
    reason: str
    change: str
    containers: Containers | None = None
    pin: Pin | None = None


@dataclass(frozen=True)
class ExecutionPlan:
    """An experiment that this machine can run, and what was decided about how.

    Attributes:
        inventory: Every GPU of the host, and the driver's versions.
        gpus: The GPUs it is to run on; empty for the CPU.
        python: The interpreter that the user named; None for an environment of our own.
        launch: How runners are started.
        cache: Folder for what engines in containers compile.
        meter: Which meter, and why.
        variables: Engine settings that reach its runner from the environment here; "set" for what may be secret.
        memory: Whether the model fits, as far as that is known; None on the CPU.
    """

    config: ExperimentConfig
    runner_dir: Path
    machine: Machine
    inventory: GpuInventory
    gpus: tuple[GpuInfo, ...]
    python: Path | None
    launch: LauncherChoice
    cache: Path
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
        return gpu_warnings(self.gpus, self.inventory)

    @property
    def lease_names(self) -> tuple[str, ...]:
        """What it needs for itself."""
        return tuple(gpu.uuid for gpu in self.gpus) or (CPU,)

    @property
    def variant(self) -> Variant:
        """Which of the backend's requirement files fits: "cuda" or "cpu"."""
        return "cuda" if self.gpus else "cpu"

    @contextmanager
    def launcher(self, say: Callable[[str], None]) -> Iterator[Launcher]:
        """Yield the launcher, its environment made where it has none and kept as it is meanwhile."""
        if containers := self.launch.containers:
            yield DockerLauncher(containers, cache=self.cache / containers.image.id[-12:], limits=self.config.container)
            return
        if self.python:
            yield ProcessLauncher(self.python, keep_pythonpath=True)
            return
        with environment_in_use(self.runner_dir, variant=self.variant, progress=say) as python:
            yield ProcessLauncher(python)

    def new_meter(self) -> Meter:
        """Return a meter that has not been started."""
        return self.meter.new_meter()


def preflight(config: ExperimentConfig, host: Host, *, output_dir: Path, home: Path) -> ExecutionPlan:
    """Check everything that needs no runner.

    Raises:
        ConfigError: What was written names something that does not exist.
        PreflightError: This machine cannot do it.
    """
    runner_dir = find_runner(config.backend)
    check_model(config.model)
    if config.model.shape is not None:
        config.section.require_drawable()
    check_prompts(config.prompts, has_tokenizer=config.model.shape is None)
    found = host.inventory
    fit = _memory_fit(config, found, WEIGHTS_ONLY)
    around = Surroundings(os.environ.get("CUDA_VISIBLE_DEVICES"), host.leases, fit.weight_bytes)
    gpus = choose_gpus(config, found, around)
    python = check_python(config.runner_python) if config.runner_python else None
    make_socket_folder(os.environ).rmdir()
    require_writable(output_dir, setting="--output-dir")
    require_writable(home, setting="WATTDOCK_HOME")
    launch = _choose_launcher(config, host, on_gpu=bool(gpus))
    return ExecutionPlan(
        config=config,
        runner_dir=runner_dir,
        machine=describe_machine(),
        inventory=found,
        gpus=gpus,
        python=python,
        launch=launch,
        cache=home.absolute() / "cache" / config.backend,
        meter=choose_meter(config.meter, found),
        variables=_variables(config, runner_dir, gpus, in_container=launch.containers is not None),
    )


def _variables(
    config: ExperimentConfig, runner_dir: Path, gpus: Sequence[GpuInfo], *, in_container: bool
) -> dict[str, str]:
    spec = LaunchSpec(
        backend=config.backend,
        runner_dir=runner_dir,
        log_path=runner_dir / "unused.log",
        gpu_indices=tuple(gpu.index for gpu in gpus),
        gpu_uuids=tuple(gpu.uuid for gpu in gpus),
    )
    return given_settings(spec, os.environ, in_container=in_container)


def _memory_fit(config: ExperimentConfig, found: GpuInventory, demand: Demand | None = None) -> MemoryFit:
    """Refuse what cannot fit any GPU here, before one is chosen; `demand` is the workload's own unless given."""
    sizes_bytes = [gpu.vram_total_bytes for gpu in found.gpus if gpu.vram_total_bytes is not None]
    memory_bytes = max(sizes_bytes, default=None) if config.accelerator != "cpu" else None
    figures = known_figures(config.model)
    return memory_fit(config, figures, gpus=gpus_asked(config), memory_bytes=memory_bytes, demand=demand)


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
            f"GPU {gpu.index}: {why}" for gpu in found.gpus if gpu.uuid in chosen and (why := why_occupied(gpu, found))
        ]
        if not occupied:
            return
        if time.monotonic() > deadline_s:
            raise PreflightError(f"{'; '.join(occupied)}; choose others with gpus")
        time.sleep(TEARDOWN_POLL_S)


def _locked_launcher(config: ExperimentConfig, host: Host, *, on_gpu: bool) -> LauncherChoice:
    """Return the launcher with the locked image."""
    containers, pin = find_locked(config.backend, host.lock, needs_gpu=on_gpu)
    return LauncherChoice("docker", f"locked image {containers.image.name}", "no --locked", containers, pin)


def _choose_launcher(config: ExperimentConfig, host: Host, *, on_gpu: bool) -> LauncherChoice:
    if config.container.locked:
        return _locked_launcher(config, host, on_gpu=on_gpu)
    if config.launcher == "process":
        return LauncherChoice("process", "asked for", "--launcher docker")
    if config.runner_python and config.launcher == "auto":
        return LauncherChoice("process", "runner_python names an interpreter", "--launcher docker without it")
    try:
        wanted = config.container.image or f"wattdock-{config.backend}"
        containers = find_containers(wanted, backend=config.backend, needs_gpu=on_gpu)
    except NoContainersError as error:
        if config.launcher == "docker":
            raise PreflightError(f"launcher: docker: {error}, or use --launcher process") from error
        return LauncherChoice("process", error.reason, f"--launcher docker; first: {error.remedy}")
    if config.runner_python:
        raise ConfigError("launcher: docker and runner_python exclude each other; a container has its own interpreter")
    engine, image = containers.engine, containers.image
    there = f"{engine.name} {engine.version} has image {image.name}"
    return LauncherChoice(
        "docker", there if config.launcher == "auto" else "asked for", "--launcher process", containers
    )
