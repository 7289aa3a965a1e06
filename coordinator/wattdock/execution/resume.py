"""Open the folder of a study, new or gone on with; refuse to mix in what has changed since.

Writes only journal lines: that a study was resumed, or that an experiment is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution.begun import begun_before, changed
from wattdock.execution.events import Note
from wattdock.execution.experiment import ExperimentState
from wattdock.execution.study_folder import FAILED, RESUMED, RETRIED, StudyFolder
from wattdock.inputs import check_prompts
from wattdock.store import RESULT, StoredResult, load_result
from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from wattdock.checks import ExecutionPlan
    from wattdock.config import ExperimentConfig, ModelSpec, Study
    from wattdock.execution.events import Emit
    from wattdock.execution.study_folder import History, Line
    from wattdock.inputs import ModelFolder
    from wattdock.records import EnvironmentSnapshot, RestartRecord


def open_study(
    study: Study,
    output_dir: Path,
    *,
    machine: Mapping[str, Any],
    resume: bool | str,
    retry_failed: bool = False,
) -> StudyFolder:
    """Return the folder of the study that is to be resumed, or a new one.

    Args:
        machine: What `machine_identity` returned.
        resume: A study's name (`find_study`), or whether to go on with the latest equal study, if there is one. One
            without a measured pass, or a failure to be retried, hides no older one that has some.

    Raises:
        ConfigError: The study has changed since it was begun, or the name means no study or several.
        PreflightError: The machine has changed.
        StoreError: The study's folder cannot be read or made, or another coordinator works in it.
    """
    chosen = begun_before(study, output_dir, resume=resume, in_tasks=False, retry_failed=retry_failed)
    if not chosen:
        return StudyFolder.create(study, output_dir, machine=machine)
    _check_machine(chosen.head, machine, chosen.path)
    folder = StudyFolder.at(chosen.path)
    folder.note(RESUMED)
    return folder


def open_task(study: Study, path: Path, *, plans: Sequence[ExecutionPlan], emit: Emit) -> StudyFolder:
    """Return the folder of one task of a study, made or gone on with.

    On another machine than before, or other GPUs, unfinished experiments begin anew: joules are of one set of GPUs.

    Args:
        study: The task's experiments.
        path: `<the study's folder>/tasks/<number>`.

    Raises:
        StoreError: The folder cannot be read or made, or another coordinator works in it.
    """
    # A text: GPUs' order in a list says nothing.
    gpus, job = " ".join(sorted({gpu.uuid for plan in plans for gpu in plan.gpus})), plans[0].job
    machine = machine_identity(plans) | {"gpus": gpus, "node": job and job.node}
    folder = StudyFolder.at(path)
    if not folder.lines:
        try:
            folder.begin(study, path.parent.parent.name, machine=machine, task=int(path.name))
        except OSError as error:
            raise StoreError(f"cannot write to {path}: {error.strerror or error}; free some space") from error
        return folder
    if folder.lines[0]["experiments"].keys() != {config.experiment_id for config in study.experiments}:
        with folder:
            raise StoreError(f"{path} holds another task's experiments; run the study as a new one, without --resume")
    before = next(line["machine"] for line in reversed(folder.lines) if "machine" in line)
    if changes := changed(before, machine):
        emit(Note(f"another machine than before ({'; '.join(changes)}): unfinished experiments begin anew"))
        folder.drop(None)
    folder.note(RESUMED, machine=machine)
    return folder


def machine_identity(plans: Sequence[ExecutionPlan]) -> dict[str, Any]:
    """Return what must not change within a study, so that its figures are of one machine and version."""
    gpus = plans[0].inventory.gpus
    launches = [(plan.config.backend, plan.launch) for plan in plans]
    # Equal images under another digest differ too: earlier passes would be attributed to a digest that was not checked.
    return {
        **{f"{backend}'s image": launch.image.id for backend, launch in launches if launch.image},
        **{f"{backend}'s locked digest": launch.pin.repo_digest for backend, launch in launches if launch.pin},
        "variables": {name: value for plan in plans for name, value in plan.variables.items()},
        "wattdock_version": __version__,
        "cpu_model": plans[0].machine.cpu_model,
        "gpu_uuids": [gpu.uuid for gpu in gpus],
        "driver_version": gpus[0].driver_version if gpus else None,
    }


def restore(
    plan: ExecutionPlan,
    folder: StudyFolder,
    history: History,
    *,
    resolve: Callable[[ModelSpec], ModelFolder],
    expected_pass_s: float | None,
) -> ExperimentState:
    """Return the state of an experiment that is not done, with what earlier runs measured of it.

    Args:
        resolve: Returns the folder of a model as it is now.

    Raises:
        ConfigError: The experiment's prompts file or its model's folder has changed since.
        PreflightError: Other GPUs were chosen now than those of the earlier passes.
    """
    experiment_id = plan.config.experiment_id
    state = ExperimentState(plan, folder, earlier_results=len(history.folders), expected_pass_s=expected_pass_s)
    if history.status == FAILED:
        folder.drop(experiment_id)
        folder.note(RETRIED, experiment=experiment_id)
        return state
    state.saved = folder.saved(experiment_id)
    records = [saved.record for saved in state.saved.values()]
    _require_same_gpus(plan, records)
    require_same_prompts(plan.config, [measured.prompts_sha256 for record in records for measured in record.passes])
    if environments := state.measured_on:
        require_same_model(plan.config, resolve(plan.config.model), environments)
    return state


def _require_same_gpus(plan: ExecutionPlan, records: Iterable[RestartRecord]) -> None:
    """Refuse other GPUs than those of the earlier passes: an experiment's joules are of one set of GPUs."""
    planned = {gpu.uuid for gpu in plan.gpus}
    for record in records:
        # Without an environment nobody knows the GPUs; such a record has failed.
        if not record.passes or not record.environment:
            continue
        earlier = set(record.environment.leased_gpus)
        if earlier != planned:
            raise PreflightError(
                f"{plan.config.label} was measured on {', '.join(sorted(earlier)) or 'the CPU'}, and this run would "
                f"take {', '.join(sorted(planned)) or 'the CPU'}; see that those are free and in CUDA_VISIBLE_DEVICES, "
                "or run it as a new study without --resume"
            )


def require_same_prompts(config: ExperimentConfig, sent_sha256: Iterable[str | None]) -> None:
    """Refuse a prompts file that has changed since this study sent it: its content is not in the settings.

    Raises:
        ConfigError: The file has changed, or cannot be read.
    """
    current = check_prompts(config)
    if current and (others := {sha256 for sha256 in sent_sha256 if sha256} - {current}):
        raise ConfigError(
            f"the study has changed since it was begun: {config.label} was measured with other prompts than "
            f"{config.prompts.source} now holds ({min(others)[:8]} → {current[:8]}); put them back, "
            "or run it as a new study without --resume"
        )


def require_same_model(
    config: ExperimentConfig, model: ModelFolder, measured_on: Iterable[EnvironmentSnapshot]
) -> None:
    """Refuse a model whose folder has changed since this study measured with it: the settings hold only its name.

    Raises:
        ConfigError: The folder has changed; names the files.
    """
    for environment in measured_on:
        earlier = environment.model.files
        if earlier and (changes := model.changes_since(earlier)):
            raise ConfigError(
                f"the model's folder {model.path} has changed since {config.label} was measured: {changes}; "
                "put the old files back, or run it as a new study without --resume"
            )


def stored_result(history: History, experiment_id: str, output_dir: Path) -> StoredResult:
    """Return the last result of an experiment that a study has stored.

    Raises:
        StoreError: It is gone, or is another experiment's.
    """
    path = output_dir / history.folders[-1]
    if (path / RESULT).exists() and (result := load_result(path)).experiment_id == experiment_id:
        return StoredResult(path, result)
    raise StoreError(f"{path} is gone, where this study stored a result; put it back, or run without --resume")


def _check_machine(head: Line, machine: Mapping[str, Any], path: Path) -> None:
    if changes := changed(head["machine"], machine):
        raise PreflightError(
            f"{path.name} was begun on another machine or version: {'; '.join(changes)}; "
            "go on there, or run it as a new study without --resume"
        )
