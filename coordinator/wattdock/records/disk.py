"""A RestartRecord on disk: record.json, requests.parquet, steps.parquet and timeline.parquet, read back bit-exact.

record.json holds everything that is not a table, and of each array its length. Nothing in the files is ever executed.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from wattdock.errors import StoreError
from wattdock.files import MAX_JSON_BYTES, new_folder, sync
from wattdock.metering import GpuTimeline
from wattdock.opening import MAX_BYTES, OTHERS_WRITE, proc_path
from wattdock.records.declared import DeclaredWork
from wattdock.records.passes import PassRecord
from wattdock.records.restart import RestartRecord
from wattdock.records.tables import REQUESTS, STEPS, TIMELINE, fill_in, schemas, tables_of
from wattdock.text import from_json, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from wattdock.owned_folder import OwnedFolder

RECORD = "record.json"
FILES = (RECORD, REQUESTS, STEPS, TIMELINE)
# Most rows that a byte of a file can hold; more means a forged header, as rows take more than a byte in most files.
ROWS_PER_BYTE = 8
# As many rows take 500 MB of memory at most, however small their file: evenly spaced instants take no room in it.
FEW_ROWS = 500_000
# Most row groups or columns of a file: each takes a hundred times its bytes in memory; a group has a million rows.
MOST_PARTS = 10_000
# Suffix of a record's newer state, whole, before it takes the older state's name.
NEWER = ".new"
# Keys that published records lack, which were written before runners counted drafts, restarts kept `started_ns`, traces
# told their gaps and files their lines, servers were asked for others' tokens, or there were nodes.
LATER_KEYS = {
    *("drafted_tokens", "accepted_tokens", "units", "marked", "malformed_marks", "counting_processes"),
    *("repeated_ranks", "evaluations", "started_ns", "node", "clock_std_s", "gap_s", "lines", "others_counted"),
}
# The parts of a record that are tables only.
IN_REQUESTS: Any = {
    "passes": {"__all__": {"requests"}},
    "evaluations": {"__all__": {"passes": {"__all__": {"requests"}}}},
}


def write(record: RestartRecord, folder: Path) -> None:
    """Write a record to `folder`, replacing an earlier state of it; durable when this returns.

    Raises:
        OSError: There is no room, or no permission; the earlier state is still there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with new_folder(folder.parent, f".{folder.name}.") as new:
        scratch = new.path
        plain = _adapter().dump_python(record, mode="json", by_alias=True, exclude=IN_REQUESTS, fallback=len)
        (scratch / RECORD).write_text(json_text(plain, ascii_only=False) + "\n", encoding="utf-8")
        for name, table in tables_of(record).items():
            # Instants rise row by row: their differences take half the room of a file.
            instants = [field.name for field in table.schema if pa.types.is_int64(field.type)]
            others = [field.name for field in table.schema if field.name not in instants]
            encoding = dict.fromkeys(instants, "DELTA_BINARY_PACKED")
            pq.write_table(table, scratch / name, compression="zstd", use_dictionary=others, column_encoding=encoding)
        for written in scratch.iterdir():
            # Whatever the umask says: what another user could write is no measurement.
            written.chmod(written.stat().st_mode & ~OTHERS_WRITE)
            sync(written)
        sync(scratch)
        newer = folder.with_name(folder.name + NEWER)
        new.finish(newer, without=OTHERS_WRITE)
        sync(folder.parent)
        _replace(newer)


def find(parent: Path, prefix: str = "") -> list[Path]:
    """Return the folders in `parent` that hold a record and whose names begin with `prefix`, sorted by name.

    Where a crash cut off the last `write`, its newer state takes the older one's place first.
    """
    for newer in parent.glob(f"{prefix}*{NEWER}"):
        _replace(newer)
    return sorted(file.parent for file in parent.glob(f"{prefix}*/{RECORD}") if file.parent.name[0] != ".")


def measured(parent: OwnedFolder) -> set[tuple[str, int, int]]:
    """Return the passes that the records in `parent` hold: the record's name, its restart and the pass, from 0.

    Changes nothing, as another process may be writing there; a record that cannot be read has none.
    """
    passes = set()
    for name in (name for name in parent.names() if name[0] != "."):
        with suppress(OSError, ValueError, KeyError, TypeError):
            plain = from_json(parent.read(f"{name}/{RECORD}", limit_bytes=MAX_JSON_BYTES))
            passes |= {(name, int(plain["restart"]), int(part["index"])) for part in plain["passes"]}
    return passes


def spans(folder: OwnedFolder) -> Counter[tuple[int, int, int]]:
    """Return the spans that a record holds, those of passes included: the restart, begin and end, ns.

    Raises:
        StoreError: record.json is missing or cannot be read.
    """
    with _sound(folder.path, f"restore {RECORD} from a copy"):
        plain = from_json(folder.read(RECORD, limit_bytes=MAX_JSON_BYTES))
        passes = plain["passes"] + [asked for task in plain.get("evaluations", ()) for asked in task["passes"]]
        held = plain["spans"] + [run_pass["span"] for run_pass in passes]
        return Counter((plain["restart"], span["start_ns"], span["end_ns"]) for span in held)


def _replace(newer: Path) -> None:
    """Give a newer state the name of the older one; a crash in between leaves the newer one whole."""
    folder = newer.with_name(newer.name.removesuffix(NEWER))
    if folder.exists():
        shutil.rmtree(folder)
    newer.rename(folder)
    sync(folder.parent)


def read(folder: OwnedFolder) -> RestartRecord:
    """Return the record that `write` wrote to `folder`.

    Raises:
        StoreError: A file is missing, cannot be read, or was written by another version.
    """
    with _sound(folder.path, f"restore {RECORD}, {', '.join(schemas())} from a copy"):
        plain = from_json(folder.read(RECORD, limit_bytes=MAX_JSON_BYTES))
        fill_in(plain, {name: _read_table(folder, name) for name in schemas()})
        record = _adapter().validate_python(plain)
        _require_every_key(plain)
        datetime.fromisoformat(record.started_utc)
        record.require_possible()
        return record


def _require_every_key(plain: dict[str, Any]) -> None:
    """Check that no default would stand in for evidence that a record lost.

    Raises:
        ValueError: Names the keys that are missing.
    """
    passes, gpus = plain["passes"], plain["timeline"]["gpus"].values() if plain["timeline"] else ()
    declared = (run_pass["declared"] for run_pass in passes)
    for kind, parts in ((RestartRecord, [plain]), (PassRecord, passes), (DeclaredWork, declared), (GpuTimeline, gpus)):
        names = {item.name for item in fields(kind)} - LATER_KEYS
        for part in parts:
            if missing := sorted(names - part.keys()):
                raise ValueError(f"{', '.join(missing)} missing")


def read_table(folder: OwnedFolder, name: str) -> pa.Table:
    """Return one of the three tables that `write` wrote to `folder`: "requests", "steps" or "timeline".

    Raises:
        StoreError: The file is missing, cannot be read, or was written by another version.
    """
    file = f"{name}.parquet"
    with _sound(folder.path / file, "restore it from a copy"):
        return _read_table(folder, file)


@contextmanager
def _sound(path: Path, remedy: str) -> Iterator[None]:
    """Say of any error inside the block that `path` does not hold what was measured."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        if isinstance(error, OSError) and error.strerror:
            why = f"{Path(error.filename or path).name}: {error.strerror}".removeprefix(f"{path.name}: ")
        if isinstance(error, ValidationError):
            problem = error.errors()[0]
            why = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise StoreError(f"{path} does not hold what was measured ({why})", remedy) from error


def _read_table(folder: OwnedFolder, name: str) -> pa.Table:
    """Return a table, its columns as they were written."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = schemas()[name]
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    limited = {"read_dictionary": texts, "thrift_container_size_limit": MOST_PARTS}
    with folder.file(name) as content, pq.ParquetFile(proc_path(content), **limited) as file:
        if file.metadata.num_rows > max(FEW_ROWS, ROWS_PER_BYTE * os.fstat(content.fileno()).st_size):
            raise ValueError(f"{name} claims {file.metadata.num_rows:,} rows, more than its bytes can hold")
        table = file.read(schema.names)
        text_bytes = 0
        for column in table.columns:
            # Rows name texts of a list; what they would take were each written out in its row.
            for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
                text_bytes += pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
        if text_bytes > MAX_BYTES:
            raise ValueError(f"{name} would become {text_bytes:,} bytes of text")
        return table.select(schema.names).cast(schema)


@functools.cache
def _adapter() -> TypeAdapter[RestartRecord]:
    return TypeAdapter(RestartRecord)
