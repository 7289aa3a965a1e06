"""Find the study that a person means by `--resume`, and refuse one that has changed, saying what.

Reads journals; writes nothing but the line that a study was resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution.journal import read_journal
from wattdock.execution.study_folder import JOURNAL, RESUMED, STUDIES, STUDY, StudyFolder, named_like
from wattdock.text import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution.journal import Line

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


def difference(head: Line, study: Study) -> str:
    """Return, in words, how `study` differs from the one whose journal begins with `head`."""
    settings = {"order": study.order, "seed": study.seed}
    found = [f"{name} {head[name]} → {now}" for name, now in settings.items() if head[name] != now]
    before: dict[str, Any] = head["experiments"]
    now = {one.experiment_id: one.model_dump(mode="json") for one in study.experiments}
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

    A journal that cannot be read is passed over where its folder's name tells that it is of neither this name nor this
    content: on a shared server it is another person's.
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
    parts = (
        {key: one for key, one in config.items() if key not in ExperimentConfig.NOT_IDENTITY}
        for config in (before, now)
    )
    old, new = map(_leaves, parts)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)} → {new.get(key)}" for key in changed)


def _leaves(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name, without empty groups: one that is not there says the same."""
    return {name: value for name, value in dotted(settings) if value != {}}
