"""Find an earlier study, by its name or as the one that `--resume` continues, and say what is left of it.

Reads journals only.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock import text
from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.files import BEGUN_IN, JOURNAL, STUDIES, real_path
from wattdock.opening import OTHERS_WRITE, is_trusted
from wattdock.study.folder import measured_passes, named_like
from wattdock.study.journal import FAILED, OK, STUDY, History, histories, read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.config import Study
    from wattdock.study.journal import Line

# Settings of a study besides its experiments.
OF_STUDY = ("name", "order", "seed", "fleet")
# How many changed experiments a message names: more hide the first ones.
MAX_NAMED = 3


@dataclass(frozen=True)
class EarlierStudy:
    """A study that was begun in a folder of results, as its journal tells.

    Attributes:
        path: Its folder.
        lines: The journal; the first line says what is to be measured.
        distrust: Why the study cannot be continued: another user wrote it or could have. Its settings can name
            programs, its tasks' scripts run as the caller, and its records count as measured. Empty otherwise.
        problem: Why a task's journal cannot be read; empty where it can.
    """

    path: Path
    lines: list[Line]
    distrust: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """Its name with the number of the run, without the time: mine-2."""
        return text.without_timestamp(self.path.name)

    @property
    def head(self) -> Line:
        """The first line of the journal."""
        return self.lines[0]

    @property
    def begun_in(self) -> Path | None:
        """The folder in which it was begun; None where an earlier version did not note it."""
        begun_in = Path(os.path.normpath(real_path(self.path).parents[1] / str(self.head.get(BEGUN_IN))))
        return begun_in if BEGUN_IN in self.head else None

    @property
    def settings(self) -> dict[str, Any]:
        """What a file of the study would hold, every setting of each experiment included.

        Raises:
            ConfigError: Another user began it, or could have changed it.
        """
        if self.distrust:
            raise ConfigError(self.distrust, cause=Cause.OTHERS_COULD_WRITE)
        return {key: self.head[key] for key in OF_STUDY if key in self.head} | {
            "experiments": [*self.head["experiments"].values()]
        }

    def histories(self, study: Study) -> dict[str, History]:
        """Return what became of each experiment of an equal study, by its id."""
        journal = histories(self.lines)
        return {config.experiment_id: journal.get(config.experiment_id, History()) for config in study.experiments}

    def passes(self, study: Study) -> tuple[int, int]:
        """Return how many passes of an equal study are measured, without failed experiments, and how many it has."""
        journal, in_records = self.histories(study), Counter(name for name, *_ in measured_passes(self.path))
        asked = {config.experiment_id: config.repeats.measured for config in study.experiments}
        measured = (
            asked[experiment_id] if history.status == OK else in_records[experiment_id[:16]]
            for experiment_id, history in journal.items()
        )
        return sum(measured), sum(asked.values())

    @property
    def in_tasks(self) -> bool:
        """Whether the study was begun on a cluster, where tasks measure it."""
        return "fleet" in self.head


def find_study(name: str, output_dir: Path) -> EarlierStudy:
    """Return the study whose name, with its run's number, begins with `name`; the caller's own studies come first.

    Raises:
        ConfigError: There is none, or there are several.
        StoreError: Its journal cannot be read.
    """
    folders = [file.parent for file in output_dir.glob(f"{STUDIES}/*/{JOURNAL}")]
    names, own = (
        sorted(folder.name for folder in group)
        for group in (folders, (folder for folder in folders if is_trusted(folder.lstat().st_uid)))
    )
    names = own if text.matching_names(name, own) else names
    matches, shortest = text.matching_names(name, names), text.shortest_unique_names(names)
    if len(matches) != 1:
        found = "begins the names of several studies" if matches else f"no study in {output_dir} has this name"
        candidates = text.listed([shortest[match] for match in matches or reversed(names)])
        near = None if matches else text.nearest(name, shortest.values())
        advice = f"did you mean {near}? " * bool(near) + f"type one of them: {candidates}" * bool(candidates)
        raise ConfigError(f"{name}: {found}", advice or None)
    if begun := _read(output_dir / STUDIES / matches[0]):
        return begun
    raise StoreError(f"{matches[0]}: its journal does not say what the study is", "restore it or start anew")


def _read(path: Path) -> EarlierStudy | None:
    """Return the study in a folder; None where its journal does not begin with one."""
    lines, states = read_journal(path)
    if not lines or lines[0]["event"] != STUDY:
        return None
    distrust = ""
    if strangers := [state.st_uid for state in states if not is_trusted(state.st_uid)]:
        remedy = "run its file as a study of yours, without --resume"
        distrust = f"{text.without_timestamp(path.name)} is a study of user {strangers[0]}; {remedy}"
    elif writable := [
        place for place, state in zip((path, path / JOURNAL), states, strict=True) if state.st_mode & OTHERS_WRITE
    ]:
        distrust = f"{writable[0]}: other users can write to it; chmod go-w, if you trust what it says"
    return EarlierStudy(path, lines, distrust)


def study_to_resume(
    study: Study, output_dir: Path, *, resume: bool | EarlierStudy, in_tasks: bool = False, retry_failed: bool = False
) -> EarlierStudy | None:
    """Return the study that is to be resumed; None where a new one is to begin.

    Args:
        resume: The study, or whether to continue the latest equal study, if there is one. An empty study hides no
            older study with measured passes.
        in_tasks: Whether tasks on a cluster measure the study, or this machine.

    Raises:
        ConfigError: The study has changed, is not the caller's, or was begun on a cluster or machine, unlike now.
        StoreError: The study's folder cannot be read.
    """
    candidates = [resume] if isinstance(resume, EarlierStudy) else []
    if resume is True:
        own = [begun for begun in _begun(output_dir / STUDIES, study) if not begun.distrust]
        earlier = [begun for begun in own if begun.in_tasks == in_tasks]
        candidates = [begun for begun in earlier if begun.head["digest"] == study.digest]
        candidates = candidates or [begun for begun in earlier if begun.head["name"] == study.name]
    if not candidates:
        return None

    def preference(begun: EarlierStudy) -> tuple[bool, int]:
        failed = any(history.status == FAILED for history in begun.histories(study).values())
        # Tasks keep their passes in folders of their own.
        is_worth = in_tasks or begun.passes(study)[0] > 0 or (retry_failed and failed)
        return is_worth, text.run_number(begun.path.name)

    chosen = max(candidates, key=preference)
    if chosen.distrust:
        raise ConfigError(chosen.distrust, cause=Cause.OTHERS_COULD_WRITE)
    if chosen.in_tasks != in_tasks:
        where = "this machine; leave out --on" if in_tasks else "a cluster; add --on slurm"
        raise ConfigError(
            f"{chosen.name} was begun on {where}, or run it as a new study without --resume", cause=Cause.OTHER_MACHINE
        )
    if chosen.head["digest"] != study.digest:
        raise ConfigError(
            f"the study has changed since {chosen.path.name} was begun: {difference(chosen.head, study)}",
            "undo that, name another study (run --resume STUDY), or run it as a new one without --resume",
            cause=Cause.STUDY_CHANGED,
        )
    return chosen


def _begun(studies: Path, study: Study) -> Iterator[EarlierStudy]:
    """Yield every study that was begun; skip unreadable journals of other users and of studies of other names."""
    for path in studies.glob("*"):
        try:
            begun = _read(path)
        except StoreError as error:
            has_journal = not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            if has_journal and named_like(path.name, study) and is_trusted(path.lstat().st_uid):
                raise
            continue
        if begun:
            yield begun


def difference(head: Line, study: Study) -> str:
    """Return, in words, how `study` differs from the study whose journal begins with `head`."""
    settings = {"order": study.order, "seed": study.seed}
    study_changes = [f"{name} {head[name]} → {value}" for name, value in settings.items() if head[name] != value]
    old = {name: config for name, config in head["experiments"].items() if isinstance(config, dict)}
    new = {config.experiment_id: config.model_dump(mode="json") for config in study.experiments}
    removed = {_label(config): config for experiment_id, config in old.items() if experiment_id not in new}
    added = {_label(config): config for experiment_id, config in new.items() if experiment_id not in old}
    changes = [
        f"{name}: {', '.join(changed(_identity(removed[name]), _identity(added[name])))}"
        for name in removed.keys() & added.keys()
    ]
    changes += [f"without {name}" for name in removed.keys() - added.keys()]
    changes += [f"with {name}" for name in added.keys() - removed.keys()]
    changes.sort()
    shown = [text.listed(changes, MAX_NAMED, between="; ")] if changes else []
    return "; ".join([*study_changes, *shown]) or "another order of experiments"


def _label(config: dict[str, Any]) -> str:
    facts = dict(text.dotted(config))
    return str(facts.get("name") or f"{facts.get('backend')} batch {facts.get('workload.batch_size')}")


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ExperimentConfig.NOT_IDENTITY}


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return "name old → new" for each dotted name whose values differ; an absent group equals an empty one."""
    before, now = ({name: value for name, value in text.dotted(facts) if value != {}} for facts in (old, new))
    names = dict.fromkeys([*now, *before])
    return [f"{name} {before.get(name)} → {now.get(name)}" for name in names if before.get(name) != now.get(name)]
