"""Find the study that `--resume` continues and what was measured of it; refuse to mix in what has changed since.

Writes only journal lines: that a study was resumed, or that an experiment is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock import __version__
from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution.experiment import ExperimentState
from wattdock.execution.study_folder import (
    FAILED,
    RESUMED,
    RETRIED,
    STUDY,
    StudyFolder,
    named_like,
    read_journal,
)
from wattdock.files import JOURNAL, STUDIES, is_trusted
from wattdock.inputs import check_prompts
from wattdock.store import RESULT, StoredResult, load_result
from wattdock.text import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wattdock.checks import ExecutionPlan
    from wattdock.config import Study
    from wattdock.execution.study_folder import History, Line
    from wattdock.records import RestartRecord

# Changed experiments that a message names.
MAX_NAMED = 3


def open_study(study: Study, output_dir: Path, *, machine: Mapping[str, Any], resume: bool) -> StudyFolder:
    """Return the folder of the latest equal study if it is to be resumed, else a new one.

    Args:
        machine: What `machine_identity` returned.

    Raises:
        ConfigError: The study has changed since it was begun.
        PreflightError: The machine has changed.
        StoreError: The study's folder cannot be read or made, or another coordinator works in it.
    """
    if not resume:
        return StudyFolder.create(study, output_dir, machine=machine)
    begun = dict(_begun(output_dir / STUDIES, study))
    same = [path for path, head in begun.items() if head["digest"] == study.digest]
    if not same:
        if namesakes := [path for path, head in begun.items() if head["name"] == study.name]:
            path = max(namesakes)
            raise ConfigError(
                f"the study has changed since {path.name} was begun: {difference(begun[path], study)}; "
                "undo that, or run it as a new study without --resume"
            )
        return StudyFolder.create(study, output_dir, machine=machine)
    path = max(same)
    _check_machine(begun[path], machine, path)
    try:
        folder = StudyFolder(path)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error.strerror or error}; see its owner and free space") from error
    folder.note(RESUMED)
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
    plan: ExecutionPlan, folder: StudyFolder, history: History, *, expected_pass_s: float | None
) -> ExperimentState:
    """Return the state of an experiment that is not done, with what earlier runs measured of it.

    Raises:
        ConfigError: The experiment's prompts file has changed since.
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


def stored_result(history: History, experiment_id: str, output_dir: Path) -> StoredResult:
    """Return the last result of an experiment that a study has stored.

    Raises:
        StoreError: It is gone, or is another experiment's.
    """
    path = output_dir / history.folders[-1]
    if (path / RESULT).exists() and (result := load_result(path)).experiment_id == experiment_id:
        return StoredResult(path, result)
    raise StoreError(f"{path} is gone, where this study stored a result; put it back, or run without --resume")


def difference(head: Line, study: Study) -> str:
    """Return, in words, how `study` differs from the study whose journal begins with `head`."""
    settings = {"order": study.order, "seed": study.seed}
    study_changes = [f"{name} {head[name]} → {value}" for name, value in settings.items() if head[name] != value]
    old = {name: config for name, config in head["experiments"].items() if isinstance(config, dict)}
    new = {config.experiment_id: config.model_dump(mode="json") for config in study.experiments}
    removed = {_label(config): config for experiment_id, config in old.items() if experiment_id not in new}
    added = {_label(config): config for experiment_id, config in new.items() if experiment_id not in old}
    changes = [
        f"{name}: {', '.join(_changes(_identity(removed[name]), _identity(added[name])))}"
        for name in removed.keys() & added.keys()
    ]
    changes += [f"without {name}" for name in removed.keys() - added.keys()]
    changes += [f"with {name}" for name in added.keys() - removed.keys()]
    changes.sort()
    more = [f"and {len(changes) - MAX_NAMED} more"] if len(changes) > MAX_NAMED else []
    return "; ".join([*study_changes, *changes[:MAX_NAMED], *more]) or "another order of experiments"


def _begun(studies: Path, study: Study) -> Iterator[tuple[Path, Line]]:
    """Yield the folder of every study that was begun, with the first line of its journal.

    A journal that cannot be read is skipped where the folder is another user's, or has neither this study's name nor
    its digest.
    """
    for path in studies.glob("*"):
        try:
            lines = read_journal(path / JOURNAL)
        except StoreError as error:
            has_journal = not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            if has_journal and named_like(path.name, study) and is_trusted(path.stat().st_uid):
                raise
            continue
        if lines and lines[0].get("event") == STUDY:
            yield path, lines[0]


def _check_machine(head: Line, machine: Mapping[str, Any], path: Path) -> None:
    if changes := _changes(head["machine"], machine):
        raise PreflightError(
            f"{path.name} was begun on another machine or version: {'; '.join(changes)}; "
            "go on there, or run it as a new study without --resume"
        )


def _label(config: dict[str, Any]) -> str:
    facts = dict(dotted(config))
    return str(facts.get("name") or f"{facts.get('backend')} batch {facts.get('workload.batch_size')}")


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ExperimentConfig.NOT_IDENTITY}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return "name old → new" for each dotted name whose values differ; an absent group equals an empty one."""
    before, now = ({name: value for name, value in dotted(facts) if value != {}} for facts in (old, new))
    names = dict.fromkeys([*now, *before])
    return [f"{name} {before.get(name)} → {now.get(name)}" for name in names if before.get(name) != now.get(name)]
