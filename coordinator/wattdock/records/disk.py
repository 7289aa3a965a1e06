"""A RestartRecord on disk: record.json, requests.parquet, steps.parquet and timeline.parquet, read back bit-exact.

record.json holds everything that is not a table, and of each array its length. Nothing in the files is ever executed.
"""

from __future__ import annotations

import functools
import os
import shutil
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from wattdock.errors import StoreError
from wattdock.files import MAX_JSON_BYTES, new_folder, sync
from wattdock.opening import MAX_BYTES, OTHERS_WRITE, proc_path
from wattdock.records.restart import RestartRecord
from wattdock.text import from_json, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from wattdock.owned_folder import OwnedFolder
    from wattdock.records.passes import PassRecord
    from wattdock.records.restart import RestartRecord

    Plain = dict[str, Any]

RECORD, REQUESTS, STEPS, TIMELINE = "record.json", "requests.parquet", "steps.parquet", "timeline.parquet"
# A row takes more than a byte in all but a few files, and in these by far not so little.
ROWS_PER_BYTE = 8
# Groups of rows in a file, of a million rows each, or columns; each takes a hundred times what it has in the file.
MOST_PARTS = 10_000
# A whole newer state of a record, on its way to the older state's name.
NEWER = ".new"
# Series that are not the meter's; the unit stands in the name.
COUNTER, TOKENS = "energy_counter_mj", "output_tokens"
BRACKETS = ("before_start_ns", "before_end_ns", "after_start_ns", "after_end_ns")
# Columns of requests.parquet that say which pass a request belongs to; all others are fields of `RequestRecord`.
OF_PASS = ("restart", "pass")
IN_REQUESTS = {"passes": {"__all__": {"requests"}}}


def write(record: RestartRecord, folder: Path) -> None:
    """Write a record to `folder`, replacing an earlier state of it; durable when this returns.

    Raises:
        OSError: There is no room, or no permission; the earlier state is still there.
    """
    import pyarrow.parquet as pq

    with new_folder(folder.parent, f".{folder.name}.") as new:
        scratch = new.path
        plain = _adapter().dump_python(record, mode="json", by_alias=True, exclude=IN_REQUESTS, fallback=len)
        (scratch / RECORD).write_text(json_text(plain, ascii_only=False) + "\n", encoding="utf-8")
        pq.write_table(_requests_table(record), scratch / REQUESTS, compression="zstd")
        pq.write_table(_steps_table(record), scratch / STEPS, compression="zstd")
        pq.write_table(_timeline_table(record), scratch / TIMELINE, compression="zstd")
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
    import pyarrow as pa

    try:
        plain = from_json(folder.read(RECORD, limit_bytes=MAX_JSON_BYTES))
        requests, steps, samples = (_read_table(folder, name, schema()) for name, schema in TABLES)
        _fill_in(plain, _requests_by_pass(requests), steps, _Samples(samples))
        record = _adapter().validate_python(plain)
        datetime.fromisoformat(record.started_utc)
        record.require_possible()
        return record
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        why = _first_problem(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
        files = f"{RECORD}, {REQUESTS}, {STEPS} and {TIMELINE}"
        raise StoreError(f"{folder.path} does not hold what was measured ({why})", f"bring {files} back") from error


def read_table(folder: OwnedFolder, name: str) -> pa.Table:
    """Return one of the three tables that `write` wrote to `folder`: "requests", "steps" or "timeline".

    Raises:
        StoreError: The file is missing, cannot be read, or was written by another version.
    """
    import pyarrow as pa

    file, schema = next((file, schema) for file, schema in TABLES if file == f"{name}.parquet")
    try:
        return _read_table(folder, file, schema())
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise StoreError(
            f"{folder.path / file} cannot be read ({' '.join(str(error).split())})", "bring it back"
        ) from error


def _read_table(folder: OwnedFolder, name: str, schema: pa.Schema) -> pa.Table:
    """Return a table, its columns as they were written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    limited = {"read_dictionary": texts, "thrift_container_size_limit": MOST_PARTS}
    with folder.file(name) as content, pq.ParquetFile(proc_path(content), **limited) as file:
        if file.metadata.num_rows > ROWS_PER_BYTE * os.fstat(content.fileno()).st_size:
            raise ValueError(f"{name} claims {file.metadata.num_rows:,} rows, more than its bytes can hold")
        table = file.read([name for name in schema.names if name in file.schema_arrow.names])
        if (text_bytes := sum(map(_text_bytes, table.columns))) > MAX_BYTES:
            raise ValueError(f"{name} would become {text_bytes:,} bytes of text")
        return table.select(schema.names).cast(schema)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the size of a column whose rows name each a text of a list, were the text written out in each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = column.chunks if pa.types.is_dictionary(column.type) else ()
    return sum(pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0 for chunk in chunks)


@functools.cache
def _adapter() -> TypeAdapter[RestartRecord]:
    # That module takes these functions as its class's methods.
    from wattdock.records.restart import RestartRecord

    return TypeAdapter(RestartRecord)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


@functools.cache
def requests_schema() -> pa.Schema:
    """Return the columns of requests.parquet, one row per request."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("restart", pa.int32(), nullable=False),
            pa.field("pass", pa.int32(), nullable=False),
            pa.field("index", pa.int32(), nullable=False),
            *(pa.field(name, pa.int64()) for name in ("intended_ns", "submitted_ns", "first_token_ns", "finished_ns")),
            *(pa.field(name, pa.int32()) for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens")),
            pa.field("finish_reason", pa.string()),
            pa.field("text", pa.string()),
            pa.field("output_ids", pa.list_(pa.uint32())),
            pa.field("replica", pa.int32()),
            pa.field("token_gaps_ns", pa.list_(pa.int64())),
            pa.field("max_output_tokens", pa.int32()),
            pa.field("prompt_hash", pa.uint64()),
        ]
    )


@functools.cache
def steps_schema() -> pa.Schema:
    """Return the columns of steps.parquet, one row per step of the engine; null is unknown."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("restart", pa.int32(), nullable=False),
            pa.field("pass", pa.int32(), nullable=False),
            *(pa.field(name, pa.int64()) for name in ("start_ns", "end_ns")),
            *(pa.field(name, pa.int32()) for name in ("prompt_tokens", "decoded_tokens", "sequences")),
            pa.field("context_tokens", pa.int64()),
        ]
    )


@functools.cache
def timeline_schema() -> pa.Schema:
    """Return the columns of timeline.parquet, one row per sample.

    Columns: restart; pass (null outside the measured passes); clock (identity of the clock of `at_ns`); gpu_uuid (null
    for the runner's tokens and for the host's own counters, host_…_j, in joules since the meter began); series, whose
    name ends in its unit; at_ns; value; and the calls that bracket each change of the energy counter.
    """
    import pyarrow as pa

    name = pa.dictionary(pa.int16(), pa.string())
    return pa.schema(
        [
            pa.field("restart", pa.int32(), nullable=False),
            pa.field("pass", pa.int32()),
            pa.field("clock", name),
            pa.field("gpu_uuid", name),
            pa.field("series", name, nullable=False),
            pa.field("at_ns", pa.int64(), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
            *(pa.field(bracket, pa.int64()) for bracket in BRACKETS),
        ]
    )


TABLES = ((REQUESTS, requests_schema), (STEPS, steps_schema), (TIMELINE, timeline_schema))


def _requests_table(record: RestartRecord) -> pa.Table:
    import pyarrow as pa

    rows = [
        {"restart": record.restart, "pass": measured.index, **vars(request)}
        for measured in record.passes
        for request in measured.requests
    ]
    return pa.Table.from_pylist(rows, schema=requests_schema())


def _steps_table(record: RestartRecord) -> pa.Table:
    import pyarrow as pa

    tables = [steps_schema().empty_table()]
    for measured in record.passes:
        count = len(measured.steps.start_ns)
        number = {"restart": np.full(count, record.restart), "pass": np.full(count, measured.index)}
        columns = {name: values if len(values) else pa.nulls(count) for name, values in vars(measured.steps).items()}
        tables.append(pa.table(number | columns).cast(steps_schema()))
    return pa.concat_tables(tables)


def _timeline_table(record: RestartRecord) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([timeline_schema().empty_table(), *_timeline_parts(record)])


def _timeline_parts(record: RestartRecord) -> Iterator[pa.Table]:
    """Yield a table for each series."""
    part = functools.partial(_part, record)
    for measured in record.passes:
        yield part(None, TOKENS, measured.tokens.at_ns, measured.tokens.output_tokens, number=measured.index)
    for uuid, gpu in record.gpus.items():
        brackets = {name: getattr(gpu.ticks, name) for name in BRACKETS}
        yield part(uuid, COUNTER, gpu.ticks.after_end_ns, gpu.ticks.energy_mj, brackets=brackets)
        for name, series in gpu.series.items():
            yield part(uuid, name, series.at_ns, series.value)
    host = record.timeline.host if record.timeline else None
    for name, series in (host.energy_j if host else {}).items():
        yield part(None, _host_series(name), series.at_ns, series.value)


def _host_series(domain: str) -> str:
    return f"host_{domain}_j"


def _part(
    record: RestartRecord,
    uuid: str | None,
    series: str,
    at_ns: NDArray[np.int64],
    value: NDArray[Any],
    *,
    brackets: Mapping[str, NDArray[np.int64]] | None = None,
    number: int | None = None,
) -> pa.Table:
    import pyarrow as pa

    count = len(at_ns)
    columns: dict[str, Any] = {
        "restart": np.full(count, record.restart, dtype=np.int32),
        "pass": _pass_at(at_ns, record.passes) if number is None else np.full(count, number, dtype=np.int32),
        "clock": pa.array([record.clock] * count, pa.string()),
        "gpu_uuid": pa.array([uuid] * count, pa.string()),
        "series": pa.array([series] * count, pa.string()),
        "at_ns": at_ns,
        "value": np.asarray(value, dtype=np.float64),
        **(brackets or {name: pa.nulls(count, pa.int64()) for name in BRACKETS}),
    }
    schema = timeline_schema()
    return pa.Table.from_arrays([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


def _pass_at(at_ns: NDArray[np.int64], passes: Sequence[PassRecord]) -> pa.Array:
    """Return the measured pass that each instant lies in, null outside all of them."""
    import pyarrow as pa

    index = np.zeros(len(at_ns), dtype=np.int32)
    outside = np.ones(len(at_ns), dtype=bool)
    for measured in passes:
        inside = (at_ns >= measured.span.start_ns) & (at_ns <= measured.span.end_ns)
        index[inside] = measured.index
        outside &= ~inside
    return pa.array(index, mask=outside)


def _requests_by_pass(table: pa.Table) -> dict[int, list[Plain]]:
    """Return the fields of each pass's requests, by the pass's number."""
    groups: dict[int, list[Plain]] = {}
    for row in table.to_pylist():
        _, number = (row.pop(name) for name in OF_PASS)
        groups.setdefault(number, []).append(row)
    return groups


def _steps_of_pass(table: pa.Table, lengths: Mapping[str, int], number: int) -> Plain:
    """Return the arrays of a pass's steps by field; see `_Samples.arrays`."""
    import pyarrow.compute as pc

    steps = table.filter(pc.equal(table["pass"], number))
    if not {*lengths.values()} <= {0, len(steps)}:
        raise ValueError(f"{STEPS} holds {len(steps)} steps of pass {number}, not {max(lengths.values())}")
    unknown = np.zeros(0, dtype=np.int64)
    return {name: steps[name].to_numpy().astype(np.int64) if length else unknown for name, length in lengths.items()}


class _Samples:
    """The rows of a timeline's table, by GPU and series."""

    def __init__(self, table: pa.Table) -> None:
        import pyarrow as pa

        names = [table[name].cast(pa.string()) for name in ("gpu_uuid", "series")]
        keyed = table.set_column(3, "gpu_uuid", names[0]).set_column(4, "series", names[1])
        columns = ("pass", "at_ns", "value", *BRACKETS)
        grouped = keyed.group_by(["gpu_uuid", "series"], use_threads=False)
        rows = grouped.aggregate([(name, "list") for name in columns])
        keys = zip(rows["gpu_uuid"].to_pylist(), rows["series"].to_pylist(), strict=True)
        self._groups = {key: {name: rows[f"{name}_list"][at].values for name in columns} for at, key in enumerate(keys)}

    def arrays(
        self, lengths: Mapping[str, int], gpu: str | None, series: str, *, number: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays of a series by field.

        Args:
            lengths: Of each array, as record.json has them.
            number: The pass that the series is of; None for a series of the meter's.

        Raises:
            ValueError: The table holds another number of samples.
        """
        group = self._groups.get((gpu, series), {})
        filled = {}
        for field, length in lengths.items():
            kind = np.float64 if field == "value" else np.int64
            column = group.get(field if field in group else "value")
            array = np.zeros(0, dtype=kind) if column is None else column.to_numpy(zero_copy_only=False).astype(kind)
            if number is not None and column is not None:
                array = array[group["pass"].to_numpy(zero_copy_only=False) == number]
            if len(array) != length:
                raise ValueError(f"{TIMELINE} holds {len(array)} samples of {series}, not {length}")
            filled[field] = array
        return filled


def _fill_in(plain: Plain, requests: Mapping[int, list[Plain]], steps: pa.Table, samples: _Samples) -> None:
    """Put the tables' content into what record.json holds, in place of the arrays' lengths."""
    for measured in plain["passes"]:
        measured["requests"] = requests.get(measured["index"], [])
        measured["steps"] = _steps_of_pass(steps, measured["steps"], measured["index"])
        measured["tokens"] = samples.arrays(measured["tokens"], None, TOKENS, number=measured["index"])
    timeline = plain["timeline"] or {"gpus": {}, "host": None}
    for uuid, gpu in timeline["gpus"].items():
        gpu["ticks"] = samples.arrays(gpu["ticks"], uuid, COUNTER)
        gpu["series"] = {name: samples.arrays(lengths, uuid, name) for name, lengths in gpu["series"].items()}
    if host := timeline["host"]:
        host["energy_j"] = {
            domain: samples.arrays(lengths, None, _host_series(domain)) for domain, lengths in host["energy_j"].items()
        }
