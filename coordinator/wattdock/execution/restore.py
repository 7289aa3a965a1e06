"""Restore what earlier runs of a study measured of an experiment; refuse to mix in what has changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.execution.experiment import ExperimentState
from wattdock.inputs import check_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wattdock.config import ExperimentConfig, ModelSpec
    from wattdock.inputs import ModelFolder
    from wattdock.planning import ExecutionPlan
    from wattdock.records import EnvironmentSnapshot, RestartRecord
    from wattdock.study import StudyFolder


def restore(
    plan: ExecutionPlan,
    folder: StudyFolder,
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
    history = folder.history(experiment_id)
    state = ExperimentState(plan, folder, earlier_results=len(history.folders), expected_pass_s=expected_pass_s)
    if history.failed:
        folder.note_retried(experiment_id)
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
                f"take {', '.join(sorted(planned)) or 'the CPU'}",
                "see that those are free and in CUDA_VISIBLE_DEVICES, or run it as a new study without --resume",
                cause=Cause.OTHER_MACHINE,
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
            f"{config.prompts.source} now holds ({min(others)[:8]} → {current[:8]})",
            "put them back, or run it as a new study without --resume",
            cause=Cause.PROMPTS_CHANGED,
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
                f"the model's folder {model.path} has changed since {config.label} was measured: {changes}",
                "put the old files back, or run it as a new study without --resume",
                cause=Cause.MODEL_CHANGED,
            )
