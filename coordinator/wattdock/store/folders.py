"""Keep finished experiments as folders of plain files, and read them back.

A folder appears whole or not at all, and none is ever overwritten.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.analysis import ExperimentResult
from wattdock.audit import audited
from wattdock.errors import Cause, StoreError, os_errors_as
from wattdock.files import MAX_JSON_BYTES, RESTARTS, RESULT, SUMS, new_folder, sync
from wattdock.host import Machine
from wattdock.opening import open_data
from wattdock.output import print_json
from wattdock.owned_folder import OwnedFolder
from wattdock.records import disk
from wattdock.store.table import Row
from wattdock.text import json_text, sums_of
from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from wattdock.records import RestartRecord


LOG = "runner.log"
RESTORE = f"restore it from a copy; if the change is meant, remove the result's {SUMS}"
# A restart that was measured, and the folder that holds it already; None where it is to be written.
Measured = tuple["RestartRecord", "Path | None"]


# Receives a line about each result or file that an answer lacks.
Warn = Callable[[str], None]


@dataclass(frozen=True)
class StoredResult:
    """One result and the folder that holds its files.

    Attributes:
        bundle: The .tar file that it was read from, where `folder` is a temporary one.
        is_again: Whether this process analysed the records again.
        lacks: Where its whole study was named, the declared experiments that have no result.
    """

    folder: Path
    result: ExperimentResult
    bundle: Path | None = None
    is_again: bool = False
    lacks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it stays, as commands take it: its folder, or BUNDLE:EXPERIMENT."""
        return f"{self.bundle}:{self.result.config.label}" if self.bundle else str(self.folder)

    @property
    def row(self) -> Row:
        """The result's row of the table; only `table.in_order` knows whether it is superseded."""
        return Row.of(self.result, self.folder, self.analysed_by)

    @property
    def analysed_by(self) -> str | None:
        """Which other version and commit of wattdock its figures and its verdict are of; None where this one's."""
        ran = self.result.environment
        build = ran and (ran.wattdock_version, ran.wattdock_commit)
        if self.is_again or not build or build == (__version__, Machine.checkout().commit):
            return None
        return " ".join([build[0], (build[1] or "")[:8]]).rstrip()

    @property
    def verdict(self) -> str:
        """The audit in one line, with the other version of wattdock that it is of."""
        summary = self.result.audit.summary if self.result.audit else "not audited"
        return f"{summary} (analysed by wattdock {by}, not by this version)" if (by := self.analysed_by) else summary

    def analysed_again(self) -> StoredResult:
        """Return it as this version of wattdock makes it from its records; what failed without any as it is.

        Raises:
            StoreError: The records do not allow that, or cannot be read.
        """
        try:
            result = audited(self.result.config, self.restarts())
        except (StoreError, ValueError) as error:
            if self.result.status != "ok":
                return self
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.place} cannot be analysed again: {error}", "show its stored figures") from error
        return replace(self, result=result.model_copy(update={"study": self.result.study}), is_again=True)

    def as_json(self) -> dict[str, Any]:
        """Return what result.json holds, and, where its study lacks results, of which experiments."""
        plain = self.result.model_dump(mode="json", by_alias=True)
        return plain | ({"study": plain["study"] | {"without_result": self.lacks}} if self.lacks else {})

    @property
    def is_changed(self) -> bool:
        """Whether result.json is not as it was stored; False where an earlier version stored it, without hashes."""
        with suppress(OSError), OwnedFolder.open(self.folder) as opened:
            return bool(sums := _sums(opened)) and sums.get(RESULT) != _sha256(opened, RESULT)
        return False

    def require_as_stored(self, names: Sequence[str]) -> None:
        """Check that a result which others are to get is whole, and as it was stored.

        Args:
            names: Its files, relative to its folder.

        Raises:
            StoreError: A file was changed, a record is missing, or there are records of others.
        """
        if self.is_changed:
            raise StoreError(f"{self.folder / RESULT} was changed since it was stored", RESTORE)
        count = len({span.restart for span in self.result.spans})
        records = [f"{RESTARTS}/{number}/{file}" for number in range(count) for file in disk.FILES]
        # A link in a file's place, or in its folder's, is refused where it is opened.
        if lost := [name for name in records if not {name, *map(str, Path(name).parents)}.intersection(names)]:
            raise StoreError(f"{self.folder / lost[0]} is missing", "restore it from a copy, or name other results")
        for restart in opened_restarts(self.folder, self.result) if count else ():
            records += [f"{RESTARTS}/{restart.path.name}/{file}" for file in disk.FILES]
        inside = [name for name in names if name.startswith(f"{RESTARTS}/") or name.endswith(f"/{RESULT}")]
        if count and (strays := [name for name in inside if name not in records]):
            raise StoreError(f"{self.folder / strays[0]} is no file of this result", "move it away")

    def opened(self) -> OwnedFolder:
        """Open its folder.

        Raises:
            StoreError: It cannot be opened, or holds another result than it did.
        """
        with ExitStack() as stack:
            folder = stack.enter_context(_opened(self.folder))
            if _read(folder) != self.result:
                raise StoreError(
                    f"{self.folder} has changed since it was read", "name it again", cause=Cause.STUDY_CHANGED
                )
            stack.pop_all()
            return folder

    @property
    def has_records(self) -> bool:
        """Whether the records of the restarts are there; a result may be copied without them."""
        with suppress(OSError), OwnedFolder.open(self.folder) as opened, opened.folder(RESTARTS):
            return True
        return False

    def restarts(self) -> tuple[RestartRecord, ...]:
        """Read the records of the restarts, in the order measured.

        Raises:
            StoreError: As `opened_restarts`.
        """
        return tuple(map(disk.read, opened_restarts(self.folder, self.result)))

    def table(self, name: str) -> pa.Table:
        """Return the restarts' rows of one kind, in the order measured.

        Args:
            name: "requests", "steps" or "timeline".

        Raises:
            StoreError: A file is missing or cannot be read.
        """
        import pyarrow as pa

        restarts = opened_restarts(self.folder, self.result, f"{name}.parquet")
        return pa.concat_tables(disk.read_table(restart, name) for restart in restarts)


def store_result(result: ExperimentResult, restarts: Sequence[Measured], *, log: Path, output_dir: Path) -> Path:
    """Write a result to a new folder under `output_dir`; return the folder, or the one that holds it already.

    Raises:
        StoreError: It could not be written there; it was put under the temporary folder, or printed, instead.
    """
    started = datetime.fromisoformat(result.started_utc)
    name = f"{started:%Y%m%dT%H%M%S}-{result.config.backend}-{result.experiment_id[:8]}"
    # A coordinator that was killed may have stored the result before noting it in the journal. A failure before the
    # first new span has the spans of the interrupted result that it followed; it is another result.
    for folder in sorted(output_dir.glob(f"{name}*")) if result.spans else ():
        # A neighbour that cannot be read is another result, and must not keep this one from being stored.
        with suppress(StoreError):
            neighbour = load_result(folder)
            if (neighbour.spans, neighbour.status) == (result.spans, result.status):
                return folder
    try:
        return _write(output_dir, name, result, restarts, log)
    except OSError as error:
        try:
            rescued = Path(tempfile.mkdtemp(prefix="wattdock-rescued-"))
            place = f"in {_write(rescued, name, result, restarts, log)} instead"
        except OSError:
            print_json(result, indent=None)
            place = "printed above, as JSON"
        raise StoreError(
            f"cannot write the result to {output_dir}: {error.strerror or error}; it is {place}",
            "make room and move it, or choose another folder with --output-dir",
        ) from error


def load_result(folder: Path) -> ExperimentResult:
    """Return the result in a result folder.

    Raises:
        StoreError: There is none, or this version cannot read it.
    """
    with _opened(folder) as opened:
        return _read(opened)


def _opened(folder: Path) -> OwnedFolder:
    with os_errors_as(StoreError, f"{folder}: cannot be read", "see its owner and mode"):
        return OwnedFolder.open(folder)


def _read(folder: OwnedFolder) -> ExperimentResult:
    file = folder.path / RESULT
    try:
        content = folder.read(RESULT, limit_bytes=MAX_JSON_BYTES)
    except FileNotFoundError as error:
        raise StoreError(f"{file}: is missing", "restore it, or move its folder away") from error
    except OSError as error:
        why = error.strerror or error
        raise StoreError(f"{file}: cannot be read ({why})", "see its owner, mode and size") from error
    try:
        return ExperimentResult.model_validate_json(content)
    except ValidationError as error:
        version, of_version = ExperimentResult.SCHEMA_VERSION, ("schema_version",)
        # Another version's result differs in other fields, too.
        first = min(error.errors(), key=lambda problem: problem["loc"] != of_version)
        if first["loc"] == of_version:
            why = f"has schema version {first['input']}, this wattdock reads {version}"
            raise StoreError(f"{file}: {why}", "use the wattdock that wrote it") from error
        place = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
        why = f"is no result of schema version {version} ({place}{first['msg']})"
        raise StoreError(f"{file}: {why}", "restore it from a copy, or move its folder away") from error


def readable_results(folders: Iterable[Path], warn: Warn) -> Iterator[StoredResult]:
    """Yield the results that can be read.

    Args:
        folders: Folders of results, as `result_folders` returns them.
        warn: Receives a line about each result that cannot be read, or whose result.json is lost.
    """
    for folder in folders:
        try:
            yield StoredResult(folder, load_result(folder))
        except StoreError as error:
            warn(str(error))


def result_folders(output_dir: Path) -> list[Path]:
    """Return the folders that hold a result, or what remains of one, by name; hidden folders are unfinished.

    Raises:
        StoreError: The folder cannot be read, or is another user's link.
        OSError: There can be no folder of this name.
    """
    try:
        with OwnedFolder.open(output_dir) as opened:
            # A folder whose result.json is lost is still one.
            return [
                output_dir / name
                for name in opened.names()
                if name[0] != "." and any(opened.state(f"{name}/{file}") for file in (RESULT, RESTARTS, LOG))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        raise StoreError(f"{output_dir}: {error.strerror}", "name another folder of results") from error


def opened_restarts(folder: Path, result: ExperimentResult, *files: str) -> Iterator[OwnedFolder]:
    """Yield the folders of a result's restarts, each open until the next one, in the order measured.

    Args:
        files: Those of each restart that the caller reads; all of them if none is named.

    Raises:
        StoreError: There are none, one cannot be read, they hold other spans than the result was made from, or a file
            was changed since it was stored.
    """
    place = folder / RESTARTS
    try:
        with OwnedFolder.open(folder) as opened, opened.folder(RESTARTS) as restarts:
            names = sorted(filter(str.isdecimal, restarts.names()), key=int)
            if not names:
                raise FileNotFoundError
            sums, held = _sums(opened), Counter[tuple[int, int, int]]()
            for name in names:
                with restarts.folder(name) as restart:
                    held += disk.spans(restart)
            _require_spans(result, held, place)
            for name in names:
                with restarts.folder(name) as restart:
                    for file in files or disk.FILES:
                        # Whoever reads what is missing says so.
                        if (
                            sums
                            and restart.is_regular(file)
                            and sums.get(f"{RESTARTS}/{name}/{file}") != _sha256(restart, file)
                        ):
                            raise StoreError(f"{restart.path / file} was changed since it was stored", RESTORE)
                    yield restart
    except FileNotFoundError as error:
        raise StoreError(f"{place} is missing or empty", "restore it, or name another result") from error
    except OSError as error:
        raise StoreError(f"{error.filename or place}: {error.strerror}", "see its owner and mode") from error


def _sums(folder: OwnedFolder) -> dict[str, str]:
    """Return the hashes that a result was stored with, by its files; none where an earlier version stored it."""
    with suppress(OSError):
        lines = folder.read(SUMS, limit_bytes=MAX_JSON_BYTES).decode(errors="replace").splitlines()
        return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    return {}


def _sha256(folder: OwnedFolder, name: str) -> str:
    with folder.file(name) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _require_spans(result: ExperimentResult, held: Counter[tuple[int, int, int]], place: Path) -> None:
    """Check that a result's records hold the spans that it was made from, so that none of them went unnoticed."""
    # The window is no part of a record; a result without a span was not analysed.
    known = Counter((span.restart, span.start_ns, span.end_ns) for span in result.spans if span.name != "window")
    problems = (("restarts missing or incomplete", known - held), ("restarts too many", held - known))
    restarts = {problem: sorted({restart for restart, *_ in spans}) for problem, spans in problems}
    if known and known != held:
        what = "; ".join(f"{problem}: {', '.join(map(str, found))}" for problem, found in restarts.items() if found)
        raise StoreError(f"{place} is not what {RESULT} was made from ({what})", "restore it from a copy")


def _write(parent: Path, name: str, result: ExperimentResult, restarts: Sequence[Measured], log: Path) -> Path:
    """Write into a hidden folder beside the final one, then rename: readers never see half a result."""
    parent.mkdir(parents=True, exist_ok=True)
    with new_folder(parent, f".{name}.") as folder:
        place = folder.path
        (place / RESULT).write_text(json_text(result, indent=2, ascii_only=False) + "\n", encoding="utf-8")
        with (place / LOG).open("wb") as copy, suppress(FileNotFoundError), open_data(log) as original:
            shutil.copyfileobj(original, copy)
        (place / RESTARTS).mkdir()
        for number, (record, measured) in enumerate(restarts):
            target = place / RESTARTS / str(number)
            if measured is None:
                disk.write(record, target)
            else:
                shutil.copytree(measured, target, copy_function=_link)
        with OwnedFolder.open(place) as written:
            hashes = {name: _sha256(written, name) for name in written.files() if name != LOG}
        (place / SUMS).write_text(sums_of(hashes), encoding="utf-8")
        for path in (*place.rglob("*"), place):
            sync(path)
        final = parent / name
        # A rename onto an existing folder fails unless that is empty, so two coordinators cannot overwrite each other.
        try:
            folder.finish(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            # Another result of the same second and settings has the name.
            final = folder.finish(final.with_name(f"{final.name}-{secrets.token_hex(2)}"))
    # The study's records go once this returns: a power cut must not take the name that replaces them.
    sync(parent)
    return final


def _link(source: str, target: str) -> None:
    """Link a file, which takes no room, or copy it where the filesystem cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
