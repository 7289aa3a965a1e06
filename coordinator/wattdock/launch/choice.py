"""Choose how a backend's runners are started on this machine: in containers, or as processes.

Starts nothing and knows no launcher by name: `protocol` says what each one's file offers.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError, PreflightError
from wattdock.host import folders
from wattdock.launch.engine import NoContainersError
from wattdock.launch.runners import engine_settings, find_python, find_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wattdock.launch.images import ImagesLock
    from wattdock.launch.launcher_choice import LauncherChoice

CLIENT = "a client of a server that runs already"


def choose_launcher(
    config: ExperimentConfig, *, on_gpu: bool, home: Path, lock: Callable[[], ImagesLock]
) -> LauncherChoice:
    """Return how runners of an experiment are started here; executes nothing that the experiment names.

    Args:
        home: WATTDOCK_HOME.
        lock: Reads the lock of images; called only where the experiment asks for a locked image.

    Raises:
        ConfigError: No such backend, or two settings exclude each other.
        PreflightError: The launcher, image or interpreter that was asked for is not here.
    """
    python = find_python(config.runner_python) if config.runner_python else None
    runner_dir = None if config.command else find_runner(config.backend)
    folders.make_socket_folder(os.environ).remove()
    # "auto" is the first of the setting's values.
    names = get_args(ExperimentConfig.model_fields["launcher"].annotation)[1:]
    if config.section.server_url or config.nodes:
        # Its runner is a client without an engine, and a container has a loopback of its own and no other network.
        names = ("process",)
    elif runner_dir is None and config.launcher == "auto":
        # Its folder, its variables and its GPUs are the caller's unless an image is named.
        names = ("docker" if config.container.image else "process",)
    elif config.launcher != "auto" or config.container.locked:
        names = ("docker" if config.launcher == "auto" else config.launcher,)
    refusal = None
    for name in names:
        file = import_module(f"wattdock.launch.{name}")
        try:
            choice: LauncherChoice = file.choose(config, runner_dir=runner_dir, on_gpu=on_gpu, home=home, lock=lock)
            break
        except NoContainersError as error:
            if config.container.locked:
                raise
            if runner_dir is None:
                raise PreflightError(error.what, error.remedy) from error
            if config.launcher != "auto":
                raise PreflightError(
                    f"launcher: {name}: {error.what}", f"{error.remedy}, or use --launcher process"
                ) from error
            refusal = error
    if python and choice.image:
        what = f"launcher: {choice.name} and runner_python exclude each other"
        raise ConfigError(what, "a container has its own interpreter")
    if config.section.server_url:
        choice = replace(choice, reason=CLIENT, change=CLIENT)
    if refusal:
        choice = replace(choice, reason=refusal.what, change=f"for containers, {refusal.remedy}")
    return replace(
        choice,
        runner_dir=runner_dir,
        python=python,
        variables=engine_settings(os.environ, in_container=choice.image is not None),
        opened=file.launcher,
    )
