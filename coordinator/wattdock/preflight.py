"""Every check that needs no runner, before anything is made, downloaded or started."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError, WattdockError
from wattdock.host.folders import require_writable
from wattdock.host.gpus import inventory
from wattdock.host.machine import describe_machine
from wattdock.host.selection import choose_gpus
from wattdock.launch.docker_probe import docker_reason
from wattdock.launch.environment import environment_in_use
from wattdock.launch.interpreter import check_python
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.runners import find_runner
from wattdock.launch.socket_folder import make_socket_folder
from wattdock.meter.none import NoMeter
from wattdock.meter.nvml import NvmlMeter
from wattdock.models import check_model
from wattdock.plan import load_key
from wattdock.prompts import check_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.host.gpus import GpuInfo, GpuInventory
    from wattdock.host.machine import Machine
    from wattdock.launch.environment import Variant
    from wattdock.launch.protocol import Launcher
    from wattdock.meter.protocol import Meter
    from wattdock.progress import Progress


@dataclass(frozen=True)
class Ready:
    """An experiment that this machine can run, and what was decided about how.

    Attributes:
        inventory: Every GPU of the host, and the driver's versions.
        gpus: The GPUs it is to run on; empty for the CPU.
        python: The interpreter that the user named; None for an environment of our own.
        launcher_reason, meter_reason: Why this launcher and this meter.
    """

    config: ExperimentConfig
    runner_dir: Path
    machine: Machine
    inventory: GpuInventory
    gpus: tuple[GpuInfo, ...]
    python: Path | None
    launcher_name: str
    launcher_reason: str
    meter_name: str
    meter_reason: str

    @property
    def decisions(self) -> str:
        """Which launcher and meter, why, and what would change the launcher."""
        change = "--launcher docker" if self.launcher_name == "process" else "--launcher process"
        launcher = f"launcher: {self.launcher_name} ({self.launcher_reason}; change with {change})"
        return f"{launcher}; meter: {self.meter_name} ({self.meter_reason})"

    @property
    def variant(self) -> Variant:
        """Which of the backend's requirement files fits: "cuda" or "cpu"."""
        return "cuda" if self.gpus else "cpu"

    @contextmanager
    def launcher(self, progress: Progress) -> Iterator[Launcher]:
        """Yield the launcher, its environment made where it has none and kept as it is meanwhile."""
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
    launcher_name, launcher_reason = _choose_launcher(config)
    meter_name, meter_reason = _choose_meter(config, found)
    return Ready(
        config=config,
        runner_dir=runner_dir,
        machine=describe_machine(),
        inventory=found,
        gpus=gpus,
        python=python,
        launcher_name=launcher_name,
        launcher_reason=launcher_reason,
        meter_name=meter_name,
        meter_reason=meter_reason,
    )


def preflight_each(
    experiments: Sequence[ExperimentConfig], *, output_dir: Path, home: Path
) -> list[Ready | WattdockError]:
    """Check every experiment; what several of them share is checked once.

    Returns:
        For each experiment what was decided, or why it cannot run here.
    """
    seen: dict[tuple[str, str], Ready | WattdockError] = {}
    for one in experiments:
        if (key := _checked_key(one)) not in seen:
            seen[key] = _checked(one, output_dir=output_dir, home=home)
    found = [(one, seen[_checked_key(one)]) for one in experiments]
    return [replace(ready, config=one) if isinstance(ready, Ready) else ready for one, ready in found]


def _checked_key(config: ExperimentConfig) -> tuple[str, str]:
    """Return what is equal for experiments that pass or fail preflight together."""
    return load_key(config), config.prompts.model_dump_json()


def _checked(config: ExperimentConfig, *, output_dir: Path, home: Path) -> Ready | WattdockError:
    try:
        return preflight(config, output_dir=output_dir, home=home)
    except WattdockError as error:
        return error


def _choose_launcher(config: ExperimentConfig) -> tuple[str, str]:
    if config.launcher == "process":
        return "process", "asked for"
    why_not = docker_reason(f"wattdock-{config.backend}")
    if config.launcher == "docker":
        raise PreflightError(
            f"launcher: docker: {why_not or 'this version starts no containers yet'}; use --launcher process"
        )
    return "process", why_not or "this version starts no containers yet"


def _choose_meter(config: ExperimentConfig, found: GpuInventory) -> tuple[str, str]:
    if config.meter == "none":
        return "none", "meter: none was asked for"
    if found.gpus:
        return "nvml", f"{len(found.gpus)} NVIDIA GPU(s) found" if config.meter == "auto" else "asked for"
    reason = found.reason or "no NVIDIA GPU on this machine"
    if config.meter == "nvml":
        raise PreflightError(f"meter: nvml: {reason}; use --meter none to run without energy")
    return "none", reason
