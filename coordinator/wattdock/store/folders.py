"""Keep finished experiments as folders of plain files, and read them back.

A folder appears whole or not at all, and none is ever overwritten.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from wattdock.analysis import ExperimentResult
from wattdock.errors import StoreError
from wattdock.files import sync
from wattdock.records import RestartRecord
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence


RESULT, RESTARTS, LOG = "result.json", "restarts", "runner.log"
# A restart that was measured, and the folder that holds it already; None where it is to be written.
Measured = tuple["RestartRecord", "Path | None"]


@dataclass(frozen=True)
class StoredResult:
    """One result and the folder that holds its files."""

    folder: Path
    result: ExperimentResult

    @property
    def has_records(self) -> bool:
        """Whether the records of its restarts are there; a result that was copied without them is one all the same."""
        return (self.folder / RESTARTS).is_dir()

    @property
    def place(self) -> tuple[str, str] | None:
        """The study and the experiment that the result is an attempt at; None for one of no study."""
        study = self.result.study
        return (study.study_id, self.result.experiment_id) if study else None

    @property
    def attempt(self) -> int:
        """Which attempt at its experiment the result is, from 1."""
        return self.result.study.attempt if self.result.study else 1


class _Workload(BaseModel):
    batch_size: int


class _Settings(BaseModel):
    """The settings that readers of stored results need."""

    backend: str
    model: dict[str, Any]
    workload: _Workload


def store_result(result: ExperimentResult, restarts: Sequence[Measured], *, log: Path, output_dir: Path) -> Path:
    """Write a result to a new folder under `output_dir`; return the folder, or the one that holds it already.

    Raises:
        StoreError: It could not be written there; it was put under the temporary folder, or printed, instead.
    """
    # A coordinator that was killed may have stored the result before noting it in the journal.
    if stored := _find_stored(result, output_dir):
        return stored
    name = folder_name(result)
    try:
        return _write(output_dir, name, result, restarts, log)
    except OSError as error:
        rescued = _rescue(name, result, restarts, log)
        raise StoreError(
            f"cannot write the result to {output_dir}: {error.strerror or error}; it is {rescued}; "
            "make room and move it, or choose another folder with --output-dir"
        ) from error


def folder_name(result: ExperimentResult) -> str:
    """Return "<UTC time>-<backend>-<first 8 digits of the experiment id>"."""
    started = datetime.fromisoformat(result.started_utc)
    return f"{started:%Y%m%dT%H%M%S}-{result.config['backend']}-{result.experiment_id[:8]}"


def _find_stored(result: ExperimentResult, output_dir: Path) -> Path | None:
    """Return the folder that holds a result of the same measured spans already; None where there is none.

    A failure before the first new span has the spans of the interrupted result that it followed; it is another result.
    """
    for folder in sorted(output_dir.glob(f"{folder_name(result)}*")) if result.spans else ():
        # A neighbour that cannot be read is another result, and must not keep this one from being stored.
        with suppress(StoreError):
            found = load_result(folder)
            if (found.spans, found.status) == (result.spans, result.status):
                return folder
    return None


def load_result(path: Path) -> ExperimentResult:
    """Return the result in `path`, a result folder or its result.json.

    Raises:
        StoreError: There is none, or it is not one that this version can read.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        result = ExperimentResult.model_validate(_document(file))
        _Settings.model_validate(result.config)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror or error}; name a result folder") from error
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise StoreError(
            f"{file}: not a result of schema version {ExperimentResult.SCHEMA_VERSION} ({where}: {problem['msg']}); "
            "was it written by another version?"
        ) from error
    return result


def load_restarts(folder: Path) -> tuple[RestartRecord, ...]:
    """Return the records of a result's restarts, in the order measured.

    Raises:
        StoreError: They are not there, or cannot be read.
    """
    places = sorted((folder / RESTARTS).glob("[0-9]*"), key=lambda place: int(place.name))
    if not places:
        raise StoreError(f"{folder / RESTARTS} is not there or empty; bring it back, or name another result")
    return tuple(map(RestartRecord.read, places))


def _document(file: Path) -> dict[str, Any]:
    """Return what stands in a result.json of this schema version."""
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise StoreError(f"{file}: is no JSON ({error}); was it cut short?") from error
    if not isinstance(document, dict):
        raise StoreError(f"{file}: is no result; name a result folder")
    version = document.get("schema_version")
    if isinstance(version, int) and version != ExperimentResult.SCHEMA_VERSION:
        raise StoreError(
            f"{file}: has schema version {version}, this wattdock reads {ExperimentResult.SCHEMA_VERSION}; "
            "use the wattdock that wrote it"
        )
    return document


def _write(parent: Path, name: str, result: ExperimentResult, restarts: Sequence[Measured], log: Path) -> Path:
    """Write into a hidden folder beside the final one, then rename: readers never see half a result."""
    parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        partial.chmod(0o777 & ~_umask())
        (partial / RESULT).write_text(json_text(result, indent=2, ascii_only=False) + "\n", encoding="utf-8")
        (partial / LOG).write_bytes(log.read_bytes() if log.exists() else b"")
        _put_restarts(partial / RESTARTS, restarts)
        for written in (*partial.rglob("*"), partial):
            sync(written)
        final = _rename(partial, parent / name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    # The study's records go once this returns: a power cut must not take the name that replaces them.
    sync(parent)
    return final


def _put_restarts(place: Path, restarts: Sequence[Measured]) -> None:
    """Put each restart's folder below `place`, by its number in the order measured.

    The files are linked, so that until the study drops its records, a crash finds them in both places or in one.
    """
    place.mkdir()
    for number, (record, folder) in enumerate(restarts):
        if folder is None:
            record.write(place / str(number))
        else:
            shutil.copytree(folder, place / str(number), copy_function=_link)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where the filesystem cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _rename(partial: Path, final: Path) -> Path:
    """Give the folder its name; another result of the same second and settings gets a suffix of its own."""
    # A rename onto an existing folder fails unless that is empty, so two coordinators cannot overwrite each other.
    try:
        return partial.rename(final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    return partial.rename(final.with_name(f"{final.name}-{secrets.token_hex(2)}"))


def _rescue(name: str, result: ExperimentResult, restarts: Sequence[Measured], log: Path) -> str:
    """Put what was measured somewhere else; return where, in words."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="wattdock-rescued-"))
        return f"in {_write(folder, name, result, restarts, log)} instead"
    except OSError:
        sys.stdout.write(json_text(result) + "\n")
        return "printed above, as JSON"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
