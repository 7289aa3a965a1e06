"""The folder of one study: its journal, and records of restarts until they are part of a stored result.

After a failed write, later records stay in memory and `broken` says why: the study's run then stops.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wattdock.errors import Cause, StoreError, os_errors_as
from wattdock.files import BEGUN_IN, JOURNAL, STORED, STUDIES, real_path
from wattdock.owned_folder import OwnedFolder
from wattdock.records import disk
from wattdock.study import journal
from wattdock.study.events import EVENTS, logged
from wattdock.text import slug, without_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from wattdock.config import Study
    from wattdock.records import RestartRecord
    from wattdock.store import StoredResult
    from wattdock.study import events

# The instant, in UTC, with which the name of a study's folder begins.
TIME_FORMAT, TIME_CHARACTERS = "%Y%m%dT%H%M%S", 15
# A run's number in a folder's name; more digits come from a folder that another command made.
RUN_NUMBER = re.compile(r"[1-9]\d{0,5}")


@dataclass(frozen=True)
class SavedRestart:
    """A restart's record without its tables, and the folder that has them, or else the whole record."""

    record: RestartRecord
    folder: Path | None

    @property
    def passes(self) -> frozenset[int]:
        """Numbers of the measured passes."""
        return frozenset(measured.index for measured in self.record.passes)

    def read(self) -> RestartRecord:
        """Return the whole record.

        Raises:
            StoreError: A file cannot be read.
        """
        return self.record if self.folder is None else _read(self.folder)


class StudyFolder:
    """An open study folder, a context manager that closes it; `broken` says why nothing more can be written."""

    def __init__(self, path: Path) -> None:
        """Open the folder at `path`, which exists.

        Raises:
            StoreError: Another coordinator works in it, or a line of its journal is malformed.
            OSError: The folder cannot be written.
        """
        # Whatever the umask: a folder that another user could write holds no measurement.
        (path / journal.RECORDS).mkdir(0o755, exist_ok=True)
        self.path = path
        self.broken: StoreError | None = None
        self._journal = journal.Journal(path / JOURNAL)

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the folder at `path`, made where it is missing.

        Raises:
            StoreError: Another coordinator works in it, its journal is malformed, or it cannot be written.
        """
        with os_errors_as(StoreError, f"cannot write to {path}", "see its owner and free space"):
            path.mkdir(0o755, parents=True, exist_ok=True)
            return cls(path)

    @classmethod
    def create(cls, study: Study, output_dir: Path, *, machine: Mapping[str, Any], **more: Any) -> Self:
        """Make the folder of a study that begins now.

        Args:
            more: Further values of the journal's first line.

        Raises:
            StoreError: The folder cannot be made.
        """
        named, studies = slug(study.name), output_dir / STUDIES
        remedy = "choose another with --output-dir"
        with os_errors_as(StoreError, f"cannot make a study's folder in {studies}", remedy):
            with suppress(FileExistsError):
                studies.mkdir(parents=True)
                # Where all may put results, all may put studies.
                if (shared := output_dir.stat().st_mode) & stat.S_ISVTX:
                    studies.chmod(stat.S_IMODE(shared))
            path = _numbered(studies, named)
            folder = cls(path)
            folder.begin(study, path.name, machine=machine, **more)
        return folder

    def begin(self, study: Study, study_id: str, *, machine: Mapping[str, Any], **more: Any) -> None:
        """Write the journal's first line.

        Raises:
            OSError: There is no room.
        """
        self._journal.append(
            journal.STUDY,
            schema=journal.JOURNAL_SCHEMA,
            study_id=study_id,
            name=study.name,
            digest=study.digest,
            order=study.order,
            seed=study.seed,
            machine=machine,
            experiments={config.experiment_id: config.model_dump(mode="json") for config in study.experiments},
            # Relative to the results, with which a project may be moved.
            **{BEGUN_IN: os.path.relpath(Path.cwd(), real_path(self.output_dir)), **more},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    @property
    def output_dir(self) -> Path:
        """The folder of results that the study belongs to; of a task, that of its study."""
        return results_of(self.path)

    @property
    def study_id(self) -> str:
        """Name of the study, which its results hold: that of its folder, or of the folder that a task belongs to."""
        return str(self.lines[0]["study_id"])

    @property
    def begun(self) -> datetime:
        """The instant in the study's name: equal for all its restarts, resumed runs and tasks.

        Raises:
            StoreError: The name begins with no instant.
        """
        try:
            return datetime.strptime(self.study_id[:TIME_CHARACTERS], TIME_FORMAT).replace(tzinfo=UTC)
        except ValueError as error:
            raise StoreError(f"{self.study_id} does not begin with its time", "give it its old name") from error

    @property
    def resumed(self) -> bool:
        """Whether this run continues an earlier one."""
        return any(line["event"] == journal.RESUMED for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether the study was done, and no run has continued it since."""
        return bool(self.lines[-1]["event"] == journal.ENDED)

    @property
    def lines(self) -> list[journal.Line]:
        """The journal so far."""
        return self._journal.lines

    def history(self, experiment_id: str) -> journal.History:
        """Return what the journal says of an experiment."""
        return self._journal.histories.get(experiment_id, journal.History())

    def note_stored(self, stored: StoredResult) -> None:
        """Note that a result is stored; drop the records of its experiment, unless they are still needed."""
        result = stored.result
        self.note(STORED, experiment=result.experiment_id, status=result.status, folder=stored.folder.name)
        if result.status != journal.UNFINISHED and not self.broken:
            self.drop(result.experiment_id)

    def note_retried(self, experiment_id: str) -> None:
        """Note that an experiment that failed is measured again, and drop its records."""
        self.drop(experiment_id)
        self.note(journal.RETRIED, experiment=experiment_id)

    def event_log(self, emit: events.Emit) -> AbstractContextManager[events.Emit]:
        """Return a block that yields a new log of events, beside the records, which passes them on to `emit`."""
        return logged(self.path / journal.RECORDS / EVENTS, emit)

    def note(self, event: str, **values: Any) -> None:
        """Add a line to the journal; set `broken` if that fails."""
        try:
            self._journal.append(event, **values)
        except OSError as error:
            self._break(error)

    def new_record_name(self, experiment_id: str, restart: int) -> str:
        """Return a name for a new record of an experiment."""
        return f"{experiment_id[:16]}-{restart}-{secrets.token_hex(4)}"

    def save(self, name: str, record: RestartRecord) -> SavedRestart:
        """Write a record to disk under `name`, replacing an earlier state of it; set `broken` if that fails."""
        folder = self.path / journal.RECORDS / name
        try:
            disk.write(record, folder)
        except OSError as error:
            self._break(error)
            return SavedRestart(record, None)
        return _saved(record, folder)

    def saved(self, experiment_id: str) -> dict[str, SavedRestart]:
        """Return the records of an experiment by name.

        Raises:
            StoreError: A record cannot be read.
        """
        with OwnedFolder.open(self.path) as study, study.folder(journal.RECORDS) as records:
            if not records.only_trusted_can_write:
                raise StoreError(
                    f"{records.path}: other users can write to it",
                    "run the study anew, without --resume",
                    cause=Cause.OTHERS_COULD_WRITE,
                )
        folders = disk.find(self.path / journal.RECORDS, f"{experiment_id[:16]}-")
        return {folder.name: _saved(_read(folder), folder) for folder in folders}

    def drop(self, experiment_id: str | None) -> None:
        """Remove the records and the log of an experiment, whose stored result holds them, or of all."""
        for path in (self.path / journal.RECORDS).glob(f"{experiment_id[:16]}-*" if experiment_id else "*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def log_path(self, experiment_id: str) -> Path:
        """Return where the logs of an experiment's runners are gathered."""
        return self.path / journal.RECORDS / f"{experiment_id[:16]}-runner.log"

    def end(self) -> None:
        """Note that the study is done, unless there are records of an unfinished experiment."""
        if not disk.find(self.path / journal.RECORDS):
            self.note(journal.ENDED)
            shutil.rmtree(self.path / journal.RECORDS, ignore_errors=True)

    def _break(self, error: OSError) -> None:
        self.broken = self.broken or StoreError(
            f"cannot write to {self.path}: {error.strerror or error}; nothing more is measured",
            "make room and continue with --resume",
        )


def study_of(path: Path) -> Path:
    """Return the folder of the study that `path`, a study's folder or one of its tasks', belongs to."""
    return next(folder for folder in (path, *path.parents) if folder.parent.name == STUDIES)


def results_of(path: Path) -> Path:
    """Return the folder of results in which the folder of a study, or of one of its tasks, lies."""
    return study_of(path).parents[1]


def _read(folder: Path) -> RestartRecord:
    with os_errors_as(StoreError, str(folder), "see its owner and mode"), OwnedFolder.open(folder) as opened:
        return disk.read(opened)


def _saved(record: RestartRecord, folder: Path) -> SavedRestart:
    passes = tuple(replace(measured, requests=()) for measured in record.passes)
    return SavedRestart(replace(record, passes=passes, timeline=None), folder)


def measured_passes(path: Path) -> set[tuple[str, int, int]]:
    """Return the passes that a study folder's records hold: the experiment's id (its beginning), restart and pass."""
    with suppress(OSError), OwnedFolder.open(path) as folder, folder.folder(journal.RECORDS) as records:
        return {(name.split("-")[0], restart, index) for name, restart, index in disk.measured(records)}
    return set()


def named_like(folder: str, study: Study) -> bool:
    """Return whether a study folder has a name that a run of this study would have."""
    return _run_number(folder, slug(study.name)) is not None


def _numbered(studies: Path, named: str) -> Path:
    """Make the folder <time>-<name>-<number> with the number of the next run of that name, and return it."""
    number = max((_run_number(other.name, named) or 0 for other in studies.iterdir()), default=0)
    while True:
        number += 1
        numbered = studies / f"{datetime.now(UTC):{TIME_FORMAT}}-{named}-{number}"
        with suppress(FileExistsError):
            # Whatever the umask: a user who can write a study can have programs run.
            numbered.mkdir(0o755)
            if sum(_run_number(other.name, named) == number for other in studies.iterdir()) == 1:
                return numbered
            # Another run took the number in another second.
            numbered.rmdir()


def _run_number(folder: str, named: str) -> int | None:
    name, _, number = without_timestamp(folder).rpartition("-")
    return int(number) if name == named and RUN_NUMBER.fullmatch(number) else None
