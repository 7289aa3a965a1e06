"""The folder of one study: its journal, and records of what was measured until they are part of a stored row.

Once something cannot be written, what comes is held in memory and `broken` says so: the loop then stops.
"""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from wattdock.errors import StoreError
from wattdock.execution.eta import cost_of
from wattdock.execution.journal import Journal
from wattdock.records import RestartRecord, find_restarts, read_restart, write_restart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution.eta import Cost
    from wattdock.execution.journal import Line
    from wattdock.records import Failure

STUDIES, JOURNAL, RECORDS = "studies", "journal.jsonl", "records"
JOURNAL_SCHEMA = 1
NAME_CHARACTERS = 40
# Events of a journal.
STUDY, RESUMED, RETRIED, PASS, STORED = "study", "resumed", "retried", "pass", "stored"
GIVEN_UP, ENDED = "given up", "ended"


@dataclass(frozen=True)
class Kept:
    """What one runner measured of one restart of one experiment, on disk or, where that failed, in memory.

    Attributes:
        passes: The measured passes in it.
        failure: Why it ended early.
        cost: How long its parts took.
        prompts_sha256: Of the prompts sent.
        gpu_uuids: That the runner was given; empty on a CPU, and where it loaded nothing.
    """

    restart: int
    passes: frozenset[int]
    failure: Failure | None
    cost: Cost
    prompts_sha256: frozenset[str]
    gpu_uuids: frozenset[str]
    at: Path | RestartRecord

    def read(self) -> RestartRecord:
        """Return all of it.

        Raises:
            StoreError: A file cannot be read.
        """
        return self.at if isinstance(self.at, RestartRecord) else read_restart(self.at)


class StudyFolder:
    """An open study folder; a context manager that lets go of it.

    Attributes:
        path: `<output folder>/studies/<study id>`.
        broken: Why nothing more can be written; None while it can.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder at `path`, which exists.

        Raises:
            StoreError: Another coordinator works in it, or its journal makes no sense.
            OSError: It cannot be written.
        """
        (path / RECORDS).mkdir(exist_ok=True)
        self.path = path
        self.broken: StoreError | None = None
        self._journal = Journal(path / JOURNAL)

    @classmethod
    def create(cls, study: Study, output_dir: Path, *, machine: Mapping[str, Any]) -> Self:
        """Make the folder of a study that begins now.

        Raises:
            StoreError: It cannot be made.
        """
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{_slug(study.name)}-{study.digest[:8]}"
        path = output_dir / STUDIES / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                path = path.with_name(f"{name}-{secrets.token_hex(2)}")
            path.mkdir()
            folder = cls(path)
            folder._journal.append(
                STUDY,
                schema=JOURNAL_SCHEMA,
                study_id=path.name,
                name=study.name,
                digest=study.digest,
                order=study.order,
                seed=study.seed,
                machine=machine,
                experiments={one.experiment_id: one.model_dump(mode="json") for one in study.experiments},
            )
        except OSError as error:
            raise StoreError(
                f"cannot make the study's folder {path}: {error.strerror or error}; choose another with --output-dir"
            ) from error
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    @property
    def study_id(self) -> str:
        """Name of the study, its folder's."""
        return self.path.name

    @property
    def resumed(self) -> bool:
        """Whether it was begun by an earlier run."""
        return any(line["event"] == RESUMED for line in self.lines)

    @property
    def lines(self) -> list[Line]:
        """The journal so far."""
        return self._journal.lines

    def note(self, event: str, **facts: Any) -> None:
        """Add a line to the journal; one that cannot be written sets `broken`."""
        try:
            self._journal.append(event, **facts)
        except OSError as error:
            self._break(error)

    def new_record_name(self, experiment_id: str, restart: int) -> str:
        """Return a name for what a runner that starts now will measure; none was used before."""
        return f"{experiment_id[:16]}-{restart}-{secrets.token_hex(4)}"

    def keep(self, name: str, record: RestartRecord) -> Kept:
        """Make a record durable under `name`, replacing an earlier state of it."""
        folder = self.path / RECORDS / name
        at: Path | RestartRecord = folder
        try:
            write_restart(folder, record)
        except OSError as error:
            self._break(error)
            at = record
        return _kept(record, at)

    def kept(self, experiment_id: str) -> dict[str, Kept]:
        """Return the records of an experiment by name.

        Raises:
            StoreError: One cannot be read.
        """
        folders = find_restarts(self.path / RECORDS, f"{experiment_id[:16]}-")
        return {folder.name: _kept(read_restart(folder), folder) for folder in folders}

    def drop(self, experiment_id: str) -> None:
        """Remove the records of an experiment: its stored result holds them."""
        for path in (self.path / RECORDS).glob(f"{experiment_id[:16]}-*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def log_path(self, experiment_id: str) -> Path:
        """Return where the logs of an experiment's runners are gathered."""
        return self.path / RECORDS / f"{experiment_id[:16]}-runner.log"

    def end(self) -> None:
        """Say that nothing is left to do."""
        self.note(ENDED)
        if not self.broken:
            shutil.rmtree(self.path / RECORDS, ignore_errors=True)

    def _break(self, error: OSError) -> None:
        self.broken = self.broken or StoreError(
            f"cannot write to {self.path}: {error.strerror or error}; nothing more is measured; "
            "make room and go on with --resume"
        )


def _kept(record: RestartRecord, at: Path | RestartRecord) -> Kept:
    passes = frozenset(measured.index for measured in record.passes)
    cost = cost_of([*record.spans, *(measured.span for measured in record.passes)])
    prompts = frozenset(measured.prompts_sha256 for measured in record.passes)
    gpus = frozenset(record.environment.leased_gpus if record.environment else ())
    return Kept(record.restart, passes, record.failure, cost, prompts, gpus, at)


def named_like(folder: str, study: Study) -> bool:
    """Whether a study's folder is called as one of this study's name, or of its content, is."""
    _, _, rest = folder.partition("-")
    return rest.startswith(f"{_slug(study.name)}-") or study.digest[:8] in rest


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:NAME_CHARACTERS] or "study"
