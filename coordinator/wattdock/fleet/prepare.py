"""What the tasks of a study need, made once: models, and environments of runners that are processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.execution import Interrupts
from wattdock.host import folders
from wattdock.inputs import resolve_model
from wattdock.launch import choose_launcher
from wattdock.launch.images import read_lock
from wattdock.study import events
from wattdock.text import json_text

if TYPE_CHECKING:
    from wattdock.config import Study


def prepare(study: Study, emit: events.Emit) -> None:
    """Make once what the study's tasks need: models, and environments of backends whose runners are processes.

    Raises:
        ConfigError, PreflightError, LaunchError: A model cannot be fetched, or an environment cannot be made.
    """
    home, say = folders.wattdock_home(), events.notes(emit)
    processes = {
        (config.backend, config.accelerator != "cpu"): config.model_copy(update={"launcher": "process"})
        for config in study.experiments
        if not (config.runner_python or config.container.locked or config.launcher not in ("auto", "process"))
    }
    with Interrupts(emit) as interrupts, interrupts.interruptible():
        models = [model for config in study.experiments for model in (config.model, config.draft) if model]
        for model in {json_text(model): model for model in models}.values():
            resolve_model(model, home=home, progress=say)
        for (backend, on_gpu), config in processes.items():
            choice = choose_launcher(config, on_gpu=on_gpu, home=home, lock=read_lock)
            with choice.launcher(on_gpu=on_gpu, say=say):
                say(f"{backend}: its environment is ready")
