"""Open the folder of a new or continued study; refuse another machine or version than the study was begun on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.errors import Cause, PreflightError, StoreError, os_errors_as
from wattdock.study import events
from wattdock.study.find import changed
from wattdock.study.folder import StudyFolder, study_of
from wattdock.study.journal import RESUMED
from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.planning import ExecutionPlan
    from wattdock.study.find import EarlierStudy


def open_study(
    study: Study,
    plans: Sequence[ExecutionPlan],
    output_dir: Path,
    *,
    earlier: EarlierStudy | None,
    task: Path | None,
    emit: events.Emit,
) -> StudyFolder:
    """Return the folder of the continued study, of the task that the study is, or of a new study.

    Args:
        plans: How this machine would run its experiments.
        earlier: The study to be continued.
        task: Folder of the task, which exists or not.

    Raises:
        PreflightError: The machine has changed.
        StoreError: The study's folder cannot be read or made, or another coordinator works in it.
    """
    gpus = plans[0].inventory.gpus
    launches = [(plan.config.backend, plan.launch) for plan in plans]
    # What must not change within a study, so that its figures are of one machine and version. Equal images under
    # another digest differ, too: earlier passes would be attributed to a digest that was not checked.
    machine: dict[str, Any] = {
        **{f"{backend}'s image": launch.image.id for backend, launch in launches if launch.image},
        **{f"{backend}'s locked digest": launch.pin.repo_digest for backend, launch in launches if launch.pin},
        "variables": {name: value for plan in plans for name, value in plan.variables.items()},
        "wattdock_version": __version__,
        "cpu_model": plans[0].machine.cpu_model,
        "gpu_uuids": [gpu.uuid for gpu in gpus],
        "driver_version": gpus[0].driver_version if gpus else None,
    }
    if task:
        # A text, because the order of GPUs in a list must not count.
        planned, job = " ".join(sorted({gpu.uuid for plan in plans for gpu in plan.gpus})), plans[0].job
        return _open_task(study, task, machine=machine | {"gpus": planned, "node": job and job.node}, emit=emit)
    if not earlier:
        return StudyFolder.create(study, output_dir, machine=machine)
    if changes := changed(earlier.head["machine"], machine):
        raise PreflightError(
            f"{earlier.path.name} was begun on another machine or version: {'; '.join(changes)}",
            "go on there, or run it as a new study without --resume",
            cause=Cause.OTHER_MACHINE,
        )
    folder = StudyFolder.at(earlier.path)
    folder.note(RESUMED)
    return folder


def _open_task(study: Study, path: Path, *, machine: dict[str, Any], emit: events.Emit) -> StudyFolder:
    """Return the folder of one task of a study, new or continued: `<the study's folder>/tasks/<number>`."""
    folder = StudyFolder.at(path)
    if not folder.lines:
        with os_errors_as(StoreError, f"cannot write to {path}", "free some space"):
            folder.begin(study, study_of(path).name, machine=machine, task=int(path.name))
        return folder
    if folder.lines[0]["experiments"].keys() != {config.experiment_id for config in study.experiments}:
        with folder:
            raise StoreError(
                f"{path} holds another task's experiments",
                "run the study as a new one, without --resume",
                cause=Cause.STUDY_CHANGED,
            )
    before = next(line["machine"] for line in reversed(folder.lines) if "machine" in line)
    if changes := changed(before, machine):
        # Joules are of one set of GPUs.
        emit(events.Note(f"another machine than before ({'; '.join(changes)}): unfinished experiments begin anew"))
        folder.drop(None)
    folder.note(RESUMED, machine=machine)
    return folder
