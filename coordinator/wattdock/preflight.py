"""Every check that needs no runner, before anything is made, downloaded or started."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError
from wattdock.host.folders import require_writable
from wattdock.host.gpus import inventory
from wattdock.host.machine import describe_machine
from wattdock.host.selection import choose_gpus
from wattdock.launch.container import Limits
from wattdock.launch.docker import DockerLauncher
from wattdock.launch.engine import NoContainersError, find_containers
from wattdock.launch.environment import environment_in_use
from wattdock.launch.interpreter import check_python
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.runners import find_runner
from wattdock.launch.socket_folder import make_socket_folder
from wattdock.meter.none import NoMeter
from wattdock.meter.nvml import NvmlMeter
from wattdock.models import check_model
from wattdock.prompts import check_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.host.gpus import GpuInfo, GpuInventory
    from wattdock.host.machine import Machine
    from wattdock.launch.engine import Containers
    from wattdock.launch.environment import Variant
    from wattdock.launch.protocol import Launcher
    from wattdock.meter.protocol import Meter
    from wattdock.progress import Progress


@dataclass(frozen=True)
class LauncherChoice:
    """How runners are started, and why so.

    Attributes:
        change: What a person would do to have it otherwise.
        containers: The engine and the image, for "docker".
    """

    name: str
    reason: str
    change: str
    containers: Containers | None = None


@dataclass(frozen=True)
class Ready:
    """An experiment that this machine can run, and what was decided about how.

    Attributes:
        inventory: Every GPU of the host, and the driver's versions.
        gpus: The GPUs it is to run on; empty for the CPU.
        python: The interpreter that the user named; None for an environment of our own.
        launch: How runners are started.
        cache: Folder for what engines in containers compile.
        meter_reason: Why this meter.
    """

    config: ExperimentConfig
    runner_dir: Path
    machine: Machine
    inventory: GpuInventory
    gpus: tuple[GpuInfo, ...]
    python: Path | None
    launch: LauncherChoice
    cache: Path
    meter_name: str
    meter_reason: str

    @property
    def decisions(self) -> str:
        """Which launcher and meter, why, and what would change the launcher."""
        launcher = f"launcher: {self.launch.name} ({self.launch.reason}; change with {self.launch.change})"
        return f"{launcher}; meter: {self.meter_name} ({self.meter_reason})"

    @property
    def variant(self) -> Variant:
        """Which of the backend's requirement files fits: "cuda" or "cpu"."""
        return "cuda" if self.gpus else "cpu"

    @contextmanager
    def launcher(self, progress: Progress) -> Iterator[Launcher]:
        """Yield the launcher, its environment made where it has none and kept as it is meanwhile."""
        if containers := self.launch.containers:
            limits = Limits(**self.config.container.model_dump(exclude={"image"}))
            yield DockerLauncher(containers, cache=self.cache / containers.image.id[-12:], limits=limits)
            return
        if self.python:
            yield ProcessLauncher(self.python, keep_pythonpath=True)
            return
        with environment_in_use(self.runner_dir, variant=self.variant, progress=progress.say) as python:
            yield ProcessLauncher(python)

    def new_meter(self) -> Meter:
        """Return a meter that has not been started."""
        return NvmlMeter() if self.meter_name == "nvml" else NoMeter(self.meter_reason)


def preflight(config: ExperimentConfig, *, output_dir: Path, home: Path) -> Ready:
    """Check everything that needs no runner.

    Raises:
        ConfigError: What was written names something that does not exist.
        PreflightError: This machine cannot do it.
    """
    runner_dir = find_runner(config.backend)
    check_model(config.model)
    check_prompts(config.prompts, has_tokenizer=config.model.shape is None)
    found = inventory()
    gpus = choose_gpus(config, found, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    python = check_python(config.runner_python) if config.runner_python else None
    make_socket_folder(os.environ).rmdir()
    require_writable(output_dir, setting="--output-dir")
    require_writable(home, setting="WATTDOCK_HOME")
    meter_name, meter_reason = _choose_meter(config, found)
    return Ready(
        config=config,
        runner_dir=runner_dir,
        machine=describe_machine(),
        inventory=found,
        gpus=gpus,
        python=python,
        launch=_choose_launcher(config, on_gpu=bool(gpus)),
        cache=home.absolute() / "cache" / config.backend,
        meter_name=meter_name,
        meter_reason=meter_reason,
    )


def _choose_launcher(config: ExperimentConfig, *, on_gpu: bool) -> LauncherChoice:
    if config.launcher == "process":
        return LauncherChoice("process", "asked for", "--launcher docker")
    if config.runner_python and config.launcher == "auto":
        return LauncherChoice("process", "runner_python names an interpreter", "--launcher docker without it")
    try:
        wanted = config.container.image or f"wattdock-{config.backend}"
        containers = find_containers(wanted, backend=config.backend, needs_gpu=on_gpu)
    except NoContainersError as error:
        if config.launcher == "docker":
            raise PreflightError(f"launcher: docker: {error}") from error
        return LauncherChoice("process", error.reason, f"--launcher docker; before that: {error.remedy}")
    if config.runner_python:
        raise ConfigError("launcher: docker and runner_python exclude each other; a container has its own interpreter")
    engine, image = containers.engine, containers.image
    there = f"{engine.name} {engine.version} has image {image.name}"
    return LauncherChoice(
        "docker", there if config.launcher == "auto" else "asked for", "--launcher process", containers
    )


def _choose_meter(config: ExperimentConfig, found: GpuInventory) -> tuple[str, str]:
    if config.meter == "none":
        return "none", "meter: none was asked for"
    if found.gpus:
        return "nvml", f"{len(found.gpus)} NVIDIA GPU(s) found" if config.meter == "auto" else "asked for"
    reason = found.reason or "no NVIDIA GPU on this machine"
    if config.meter == "nvml":
        raise PreflightError(f"meter: nvml: {reason}; use --meter none to run without energy")
    return "none", reason
