"""The folder of one study: its journal, and records of restarts until they are part of a stored result.

After a failed write, later records stay in memory and `broken` says why: the study's run then stops.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from wattdock.errors import Cause, StoreError
from wattdock.files import JOURNAL, STUDIES, locked, sync
from wattdock.opening import open_regular, read_bounded
from wattdock.owned_folder import OwnedFolder
from wattdock.records import RestartRecord
from wattdock.text import from_json, json_text, untimed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from wattdock.config import Study

RECORDS, LOCK = "records", ".lock"
JOURNAL_SCHEMA = 1
# A study of 10,000 experiments has a third; while it is read, it takes up to 27 times its size.
MAX_JOURNAL_BYTES = 64_000_000
NAME_CHARACTERS = 40
# How the name of a study's folder begins: the instant of its making, UTC.
TIME_FORMAT, TIME_CHARACTERS = "%Y%m%dT%H%M%S", 15
# Of a folder that another command made, longer digits are no number of a run.
RUN_NUMBER = re.compile(r"[1-9]\d{0,5}")
# Events of a journal.
STUDY, RESUMED, RETRIED, STORED = "study", "resumed", "retried", "stored"
ENDED = "ended"
# Keys that the line of an event must have, and the types of their values.
REQUIRED_KEYS: dict[str, dict[str, type]] = {
    STUDY: {
        **dict.fromkeys(("study_id", "name", "digest", "order"), str),
        "seed": int,
        "machine": dict,
        "experiments": dict,
    },
    RETRIED: {"experiment": str},
    STORED: dict.fromkeys(("experiment", "status", "folder"), str),
}
OK, FAILED, UNFINISHED = "ok", "failed", "interrupted"

Line = dict[str, Any]


class Journal:
    """An open journal.jsonl; `lines` are all its lines.

    Who can read a file can lock it, so the lock is another one beside it.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the journal at `path`; cut off an incomplete last line, which a killed coordinator leaves.

        Raises:
            StoreError: Another coordinator has the journal open, or a line is malformed.
            OSError: The journal cannot be read or made.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(path.with_name(LOCK)))
            except BlockingIOError as error:
                running = f"another wattdock is running this study, {error.strerror}"
                raise StoreError(f"{path}: {running}", "wait for it or stop it", cause=Cause.IN_USE) from error
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            # A buffer would write a line that failed once more when the file is closed.
            self._file = stack.enter_context(
                os.fdopen(open_regular(path, flags, owned=True, mode=0o644), "a+b", buffering=0)
            )
            self._file.seek(0)
            content = self._file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._file.truncate(len(whole))
            self.lines = parse(whole, path)
            sync(path.parent)
            self._closing = stack.pop_all()

    def append(self, event: str, **values: Any) -> None:
        """Add a line.

        Raises:
            OSError: There is no room; the journal is unchanged.
        """
        line = {"event": event, "at_utc": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
        end = self._file.seek(0, os.SEEK_END)
        try:
            text = json_text(line).encode() + b"\n"
            if self._file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)
            raise
        self.lines.append(line)

    def close(self) -> None:
        """Close and unlock the journal."""
        self._closing.close()


def parse(content: bytes, path: Path) -> list[Line]:
    """Return the journal's lines.

    Raises:
        StoreError: A line is no JSON object, or lacks a key of its event; names it.
    """
    lines = []
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            lines.append(_checked(from_json(text)))
        except ValueError as error:
            raise StoreError(f"{path}:{number}: is no journal line ({error})", "restore it or start anew") from error
    return lines


def _checked(line: Any) -> Line:
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError("it names no event")
    required = REQUIRED_KEYS.get(line["event"], {})
    if missing := [key for key, kind in required.items() if not isinstance(line.get(key), kind)]:
        raise ValueError(f"{line['event']!r} without {', '.join(sorted(missing))}")
    return line


def read_journal(path: Path) -> tuple[list[Line], tuple[os.stat_result, os.stat_result]]:
    """Return the complete lines of the journal in a study's folder, and the states of that folder and that journal.

    Another process may have the journal open.

    Raises:
        StoreError: The journal cannot be read.
    """
    place = path / JOURNAL
    try:
        with OwnedFolder.open(path) as folder, folder.file(JOURNAL) as file:
            states = os.fstat(folder.descriptor), os.fstat(file.fileno())
            content = read_bounded(file, place, MAX_JOURNAL_BYTES)
    except OSError as error:
        raise StoreError(f"{place}: {error.strerror or error}", "see that it can be read") from error
    return parse(content[: content.rfind(b"\n") + 1], place), states


@dataclass
class History:
    """What a journal says of one experiment.

    Attributes:
        folders: Names of the stored results' folders, in order.
        status: Status of the last result; "interrupted" without any, or while the experiment is tried again.
    """

    folders: list[str] = field(default_factory=list)
    status: str = UNFINISHED

    def is_done(self, *, retry_failed: bool) -> bool:
        """Whether nothing of the experiment is left to measure."""
        return self.status == OK or (self.status == FAILED and not retry_failed)


def histories(lines: Iterable[Line]) -> dict[str, History]:
    """Return what a journal says of each experiment that it names, by experiment id."""
    by_id: defaultdict[str, History] = defaultdict(History)
    for line in lines:
        if line["event"] == STORED:
            by_id[line["experiment"]].folders.append(line["folder"])
            by_id[line["experiment"]].status = line["status"]
        elif line["event"] == RETRIED:
            by_id[line["experiment"]].status = UNFINISHED
    return by_id


@dataclass(frozen=True)
class SavedRestart:
    """A record of a restart on disk, without its timeline and requests in memory.

    Attributes:
        record: The record without them; the whole record where it could not be written.
        folder: None where the record could not be written.
    """

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
    """An open study folder; a context manager that closes it.

    Attributes:
        path: `<output folder>/studies/<study id>`.
        broken: Why nothing more can be written; None while it can.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder at `path`, which exists.

        Raises:
            StoreError: Another coordinator works in it, or a line of its journal is malformed.
            OSError: The folder cannot be written.
        """
        # Whatever the umask says: what another user could write is no measurement.
        (path / RECORDS).mkdir(0o755, exist_ok=True)
        self.path = path
        self.broken: StoreError | None = None
        self._journal = Journal(path / JOURNAL)

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the folder at `path`, made where it is missing.

        Raises:
            StoreError: Another coordinator works in it, its journal is malformed, or it cannot be written.
        """
        try:
            path.mkdir(0o755, parents=True, exist_ok=True)
            return cls(path)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write to {path}: {reason}", "see its owner and free space") from error

    @classmethod
    def create(cls, study: Study, output_dir: Path, *, machine: Mapping[str, Any], **more: Any) -> Self:
        """Make the folder of a study that begins now.

        Args:
            more: Further values of the journal's first line.

        Raises:
            StoreError: The folder cannot be made.
        """
        path = output_dir / STUDIES / _slug(study.name)
        try:
            path = _numbered(path)
            folder = cls(path)
            folder.begin(study, path.name, machine=machine, **more)
        except OSError as error:
            raise StoreError(
                f"cannot make the study's folder {path}: {error.strerror or error}", "choose another with --output-dir"
            ) from error
        return folder

    def begin(self, study: Study, study_id: str, *, machine: Mapping[str, Any], **more: Any) -> None:
        """Write the journal's first line.

        Raises:
            OSError: There is no room.
        """
        self._journal.append(
            STUDY,
            schema=JOURNAL_SCHEMA,
            study_id=study_id,
            name=study.name,
            digest=study.digest,
            order=study.order,
            seed=study.seed,
            stop_after_failures=study.stop_after_failures,
            machine=machine,
            experiments={config.experiment_id: config.model_dump(mode="json") for config in study.experiments},
            **more,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    @property
    def study_id(self) -> str:
        """Name of the study, which its results hold: that of its folder, or of the folder that a task belongs to."""
        return str(self.lines[0]["study_id"])

    @property
    def begun(self) -> datetime:
        """When the study began, as its name says: the same instant for all its restarts, resumed runs and tasks.

        Raises:
            StoreError: The name begins with no instant.
        """
        try:
            return datetime.strptime(self.study_id[:TIME_CHARACTERS], TIME_FORMAT).replace(tzinfo=UTC)
        except ValueError as error:
            raise StoreError(f"{self.study_id} does not begin with its time", "give it its old name") from error

    @property
    def resumed(self) -> bool:
        """Whether this run goes on with an earlier one."""
        return any(line["event"] == RESUMED for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether the study was done, and nothing has gone on with it since."""
        return bool(self.lines[-1]["event"] == ENDED)

    @property
    def lines(self) -> list[Line]:
        """The journal so far."""
        return self._journal.lines

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
        folder = self.path / RECORDS / name
        try:
            record.write(folder)
        except OSError as error:
            self._break(error)
            return SavedRestart(record, None)
        return _saved(record, folder)

    def saved(self, experiment_id: str) -> dict[str, SavedRestart]:
        """Return the records of an experiment by name.

        Raises:
            StoreError: A record cannot be read.
        """
        with OwnedFolder.open(self.path) as study, study.folder(RECORDS) as records:
            if not records.only_trusted_can_write:
                raise StoreError(
                    f"{records.path}: other users can write to it",
                    "run the study anew, without --resume",
                    cause=Cause.OTHERS_COULD_WRITE,
                )
        folders = RestartRecord.find(self.path / RECORDS, f"{experiment_id[:16]}-")
        return {folder.name: _saved(_read(folder), folder) for folder in folders}

    def drop(self, experiment_id: str | None) -> None:
        """Remove the records and the log of an experiment, whose stored result holds them, or of all."""
        for path in (self.path / RECORDS).glob(f"{experiment_id[:16]}-*" if experiment_id else "*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def log_path(self, experiment_id: str) -> Path:
        """Return where the logs of an experiment's runners are gathered."""
        return self.path / RECORDS / f"{experiment_id[:16]}-runner.log"

    def end(self) -> None:
        """Note that the study is done, unless there are records of an unfinished experiment."""
        if not RestartRecord.find(self.path / RECORDS):
            self.note(ENDED)
            shutil.rmtree(self.path / RECORDS, ignore_errors=True)

    def _break(self, error: OSError) -> None:
        self.broken = self.broken or StoreError(
            f"cannot write to {self.path}: {error.strerror or error}; nothing more is measured",
            "make room and continue with --resume",
        )


def _read(folder: Path) -> RestartRecord:
    try:
        with OwnedFolder.open(folder) as opened:
            return RestartRecord.read(opened)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}", "see its owner and mode") from error


def _saved(record: RestartRecord, folder: Path) -> SavedRestart:
    passes = tuple(replace(measured, requests=()) for measured in record.passes)
    return SavedRestart(replace(record, passes=passes, timeline=None), folder)


def measured_passes(path: Path) -> set[tuple[str, int, int]]:
    """Return the passes that a study folder's records hold: the experiment's id (its beginning), restart and pass."""
    with suppress(OSError), OwnedFolder.open(path) as folder, folder.folder(RECORDS) as records:
        return {(name.split("-")[0], restart, index) for name, restart, index in RestartRecord.measured(records)}
    return set()


def named_like(folder: str, study: Study) -> bool:
    """Return whether a study folder is named as one of this study's runs would be."""
    return _run_number(folder, _slug(study.name)) is not None


def _numbered(path: Path) -> Path:
    """Make the folder <time>-<name>-<number> with the number of the next run of that name, and return it."""
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True)
        # Where all may put results, all may put studies.
        if (shared := path.parents[1].stat().st_mode) & stat.S_ISVTX:
            path.parent.chmod(stat.S_IMODE(shared))
    number = max((_run_number(other.name, path.name) or 0 for other in path.parent.iterdir()), default=0)
    while True:
        number += 1
        numbered = path.with_name(f"{datetime.now(UTC):{TIME_FORMAT}}-{path.name}-{number}")
        with suppress(FileExistsError):
            # Whatever the umask says: who can write a study can have programs run.
            numbered.mkdir(0o755)
            if sum(_run_number(other.name, path.name) == number for other in path.parent.iterdir()) == 1:
                return numbered
            # Another took the number in another second.
            numbered.rmdir()


def _run_number(folder: str, slug: str) -> int | None:
    name, _, number = untimed(folder).rpartition("-")
    return int(number) if name == slug and RUN_NUMBER.fullmatch(number) else None


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:NAME_CHARACTERS] or "study"
