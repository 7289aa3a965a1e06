"""Find the study that `--resume` means and what was measured of it, and refuse what has changed, saying what.

Writes nothing but the journal's lines that a study was resumed, an experiment is tried again, or a pass was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from wattdock.files import JOURNAL, STUDIES
from wattdock.inputs import check_prompts
from wattdock.store import RESULT, StoredResult, load_result
from wattdock.text import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from wattdock.checks import ExecutionPlan
    from wattdock.config import Study
    from wattdock.execution.study_folder import History, Line
    from wattdock.records import RestartRecord

SHOWN = 3


def open_study(study: Study, output_dir: Path, *, machine: Mapping[str, Any], resume: bool) -> StudyFolder:
    """Return the folder of the latest equal study where it is to be resumed, else a new one.

    Args:
        machine: Facts that must not change within a study.

    Raises:
        ConfigError: The study has changed since it was begun.
        PreflightError: The machine has.
        StoreError: Its folder cannot be read or made, or another coordinator works in it.
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


def restore(
    plan: ExecutionPlan, folder: StudyFolder, history: History, *, expected_pass_s: float | None
) -> ExperimentState:
    """Return the state of an experiment that is not done, with what was measured of it before.

    Raises:
        ConfigError: Its prompts file has changed since.
        PreflightError: Other GPUs were chosen for it than those it was measured on.
    """
    experiment_id = plan.config.experiment_id
    state = ExperimentState(plan, folder, earlier_results=len(history.folders), expected_pass_s=expected_pass_s)
    if history.status == FAILED:
        folder.drop(experiment_id)
        folder.note(RETRIED, experiment=experiment_id)
        return state
    state.saved = folder.saved(experiment_id)
    before = [saved.record for saved in state.saved.values()]
    _require_same_gpus(plan, before)
    require_same_prompts(plan.config, [measured.prompts_sha256 for record in before for measured in record.passes])
    for restart in range(plan.config.repeats.restarts):
        # Killed between the record and the journal's line.
        for index in sorted(state.measured(restart)):
            if (restart, index) not in history.passes:
                state.note_pass(restart, index)
    return state


def _require_same_gpus(plan: ExecutionPlan, records: Iterable[RestartRecord]) -> None:
    """Refuse other GPUs than those of the passes before: an experiment's joules are those of one set of GPUs."""
    planned = frozenset(gpu.uuid for gpu in plan.gpus)
    measured_on = [
        frozenset(record.environment.leased_gpus if record.environment else ()) for record in records if record.passes
    ]
    before = next((uuids for uuids in measured_on if uuids != planned), None)
    if before is not None:
        raise PreflightError(
            f"{plan.config.label} was measured on {', '.join(sorted(before)) or 'the CPU'}, and this run would take "
            f"{', '.join(sorted(planned)) or 'the CPU'}; see that those are free and in CUDA_VISIBLE_DEVICES, "
            "or run it as a new study without --resume"
        )


def require_same_prompts(config: ExperimentConfig, sent_sha256: Iterable[str | None]) -> None:
    """Refuse a prompts file that has changed since this study sent it: its content is not in the settings.

    Raises:
        ConfigError: It has changed, or cannot be read.
    """
    now = check_prompts(config)
    if now and (others := {sent for sent in sent_sha256 if sent} - {now}):
        raise ConfigError(
            f"the study has changed since it was begun: {config.label} was measured with other prompts than "
            f"{config.prompts.source} now holds ({min(others)[:8]} → {now[:8]}); put them back, "
            "or run it as a new study without --resume"
        )


def stored_result(name: str, output_dir: Path) -> StoredResult:
    """Return a result that a study has stored.

    Raises:
        StoreError: It is gone.
    """
    path = output_dir / name
    if not (path / RESULT).exists():
        raise StoreError(f"{path} is gone, where this study stored a result; put it back, or run without --resume")
    return StoredResult(path, load_result(path))


def difference(head: Line, study: Study) -> str:
    """Return, in words, how `study` differs from the one whose journal begins with `head`."""
    settings = {"order": study.order, "seed": study.seed}
    found = [f"{name} {head[name]} → {now}" for name, now in settings.items() if head[name] != now]
    before: dict[str, Any] = head["experiments"]
    now = {config.experiment_id: config.model_dump(mode="json") for config in study.experiments}
    gone = {_label(config): config for id_, config in before.items() if id_ not in now}
    new = {_label(config): config for id_, config in now.items() if id_ not in before}
    changes = [f"{name}: {_settings(gone[name], new[name])}" for name in gone.keys() & new.keys()]
    changes += [f"without {name}" for name in gone.keys() - new.keys()]
    changes += [f"with {name}" for name in new.keys() - gone.keys()]
    changes.sort()
    more = [f"and {len(changes) - SHOWN} more"] if len(changes) > SHOWN else []
    return "; ".join([*found, *changes[:SHOWN], *more]) or "another order of experiments"


def _begun(studies: Path, study: Study) -> Iterator[tuple[Path, Line]]:
    """Yield every study that was begun, with the first line of its journal.

    A journal that cannot be read is skipped where its folder has neither this study's name nor its digest: on a shared
    server it is another person's.
    """
    for path in studies.glob("*"):
        try:
            lines = read_journal(path / JOURNAL)
        except StoreError as error:
            begun = not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            if begun and named_like(path.name, study):
                raise
            continue
        if lines and lines[0].get("event") == STUDY:
            yield path, lines[0]


def _check_machine(head: Line, machine: Mapping[str, Any], path: Path) -> None:
    before, now = _leaves(head["machine"]), _leaves(machine)
    # What was there and is not any more, such as an image, has changed too.
    names = dict.fromkeys([*now, *before])
    changed = [f"{key} {before.get(key)} → {now.get(key)}" for key in names if before.get(key) != now.get(key)]
    if changed:
        raise PreflightError(
            f"{path.name} was begun on another machine or version: {'; '.join(changed)}; "
            "go on there, or run it as a new study without --resume"
        )


def _label(config: dict[str, Any]) -> str:
    return str(config["name"] or f"{config['backend']} batch {config['workload']['batch_size']}")


def _settings(before: dict[str, Any], now: dict[str, Any]) -> str:
    ignored = ExperimentConfig.NOT_IDENTITY
    parts = ({key: value for key, value in config.items() if key not in ignored} for config in (before, now))
    old, new = map(_leaves, parts)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)} → {new.get(key)}" for key in changed)


def _leaves(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name, without empty groups: an absent group means the same."""
    return {name: value for name, value in dotted(settings) if value != {}}
