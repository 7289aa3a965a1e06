"""The tasks that an experiment asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.files import expanded
from wattdock.quality.bundled import BundledTask, questions
from wattdock.quality.harness import HarnessTask

if TYPE_CHECKING:
    from wattdock.config import ExperimentConfig
    from wattdock.quality.task import Task


def tasks_of(config: ExperimentConfig, *, confined: bool = True) -> list[Task]:
    """Return the tasks of `quality:`, ready to be asked of a runner in a container (`confined`); none without it.

    Raises:
        ConfigError: A task is unknown or has no data, or would run programs where they are not confined.
    """
    if (spec := config.quality) is None:
        return []
    if spec.folder and not (folder := expanded(spec.folder)).is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise ConfigError(f"quality.folder: {spec.folder} {what}", "name the folder of the tasks' YAML files")
    tasks: list[Task] = [
        (BundledTask if name in questions() else HarnessTask).of(name, config) for name in dict.fromkeys(spec.tasks)
    ]
    if not confined and not spec.run_code and (task := next((task for task in tasks if task.runs_code), None)):
        raise ConfigError(
            f"quality.tasks: {task.name} runs programs that the model writes, and the runner is in no container",
            "set launcher: docker, or quality.run_code: true to run them all the same",
        )
    return tasks
