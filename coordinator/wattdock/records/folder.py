"""A RestartRecord on disk: a folder of record.json, requests.parquet and timeline.parquet that reads back bit-exact.

record.json holds everything that is not a table. Nothing in the files is ever executed.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import os
import shutil
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from wattdock.clock import ClockCheck
from wattdock.errors import StoreError
from wattdock.files import sync
from wattdock.host import GpuProcess
from wattdock.metering import Series, Span, Ticks, Timeline
from wattdock.records.environment import EnvironmentSnapshot
from wattdock.records.failure import Failure
from wattdock.records.restart import PassRecord, RequestRecord, RestartRecord, TokenSeries
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from wattdock.metering import GpuTimeline

RECORD, REQUESTS, TIMELINE = "record.json", "requests.parquet", "timeline.parquet"
# A whole newer state of a record, on its way to the older state's name.
NEWER = ".new"
# Series that are not the meter's; the unit stands in the name.
COUNTER, TOKENS = "energy_counter_mj", "output_tokens"
BRACKETS = ("before_start_ns", "before_end_ns", "after_start_ns", "after_end_ns")
REQUEST_FIELDS = tuple(field.name for field in dataclasses.fields(RequestRecord))
# What the dataclasses' modules import for type checkers only.
NAMES = {
    "ClockCheck": ClockCheck,
    "EnvironmentSnapshot": EnvironmentSnapshot,
    "Failure": Failure,
    "GpuProcess": GpuProcess,
    "Mapping": collections.abc.Mapping,
    "NDArray": NDArray,
    "Span": Span,
    "Timeline": Timeline,
    "np": np,
}
# As JSON has them.
PLAIN = (bool, int, str, Any)


def write_restart(folder: Path, record: RestartRecord) -> None:
    """Write a record to `folder`, replacing an earlier state of it; durable when this returns.

    Raises:
        OSError: There is no room, or no permission; the earlier state is still there.
    """
    import pyarrow.parquet as pq

    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    # A coordinator that was killed may have had the same process id.
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        (scratch / RECORD).write_text(json_text(_encode(record), ascii_only=False) + "\n", encoding="utf-8")
        pq.write_table(_requests_table(record), scratch / REQUESTS, compression="zstd")
        pq.write_table(_timeline_table(record), scratch / TIMELINE, compression="zstd")
        for written in (*scratch.iterdir(), scratch):
            sync(written)
        newer = folder.with_name(folder.name + NEWER)
        scratch.rename(newer)
        sync(folder.parent)
        _replace(newer)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def find_restarts(parent: Path, prefix: str = "") -> list[Path]:
    """Return the folders of the records in `parent` whose names begin with `prefix`, each in its latest whole state."""
    for newer in parent.glob(f"{prefix}*{NEWER}"):
        _replace(newer)
    return sorted(file.parent for file in parent.glob(f"{prefix}*/{RECORD}") if file.parent.name[0] != ".")


def _replace(newer: Path) -> None:
    """Give a newer state the name of the older one; a crash in between leaves the newer one whole."""
    folder = newer.with_name(newer.name.removesuffix(NEWER))
    if folder.exists():
        shutil.rmtree(folder)
    newer.rename(folder)
    sync(folder.parent)


def read_restart(folder: Path) -> RestartRecord:
    """Return the record that `write_restart` wrote to `folder`.

    Raises:
        StoreError: A file is missing, cannot be read, or was written by another version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        bare: RestartRecord = _decode(RestartRecord, json.loads((folder / RECORD).read_bytes()))
        # Each file by itself: a folder called "name=value" is no partition.
        requests, samples = (
            pq.read_table(folder / name, partitioning=None).select(schema().names)
            for name, schema in ((REQUESTS, requests_schema), (TIMELINE, timeline_schema))
        )
        return _filled(bare, _requests(requests), _Samples(samples))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise StoreError(
            f"{folder} does not hold what was measured ({why}); bring {RECORD}, {REQUESTS} and {TIMELINE} back"
        ) from error


@functools.cache
def requests_schema() -> pa.Schema:
    """Return the columns of requests.parquet, a request each."""
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
        ]
    )


@functools.cache
def timeline_schema() -> pa.Schema:
    """Return the columns of timeline.parquet, a sample each.

    Columns: restart; pass (null outside the measured ones); clock (identity of the one that `at_ns` is of); gpu_uuid
    (null for the runner's tokens and the host's own counters, host_…_j, joules since the meter began); series, named
    with its unit; at_ns; value; and for the energy counter's changes the calls that bracket each.
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


def _requests_table(record: RestartRecord) -> pa.Table:
    import pyarrow as pa

    rows = [
        {"restart": record.restart, "pass": measured.index, **vars(request)}
        for measured in record.passes
        for request in measured.requests
    ]
    return pa.Table.from_pylist(rows, schema=requests_schema())


def _timeline_table(record: RestartRecord) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([timeline_schema().empty_table(), *_timeline_parts(record)])


def _timeline_parts(record: RestartRecord) -> Iterator[pa.Table]:
    """Yield a table for each series; `_filled` takes the arrays out in the same order."""
    part = functools.partial(_part, record)
    for measured in record.passes:
        yield part(None, TOKENS, measured.tokens.at_ns, measured.tokens.output_tokens, number=measured.index)
    for uuid, gpu in record.gpus.items():
        brackets = {name: getattr(gpu.ticks, name) for name in BRACKETS}
        yield part(uuid, COUNTER, gpu.ticks.after_end_ns, gpu.ticks.energy_mj, brackets)
        for name, series in gpu.series.items():
            yield part(uuid, name, series.at_ns, series.value)
    host = record.timeline.host if record.timeline else None
    for name, series in (host.energy_j if host else {}).items():
        yield part(None, f"host_{name}_j", series.at_ns, series.value)


def _part(
    record: RestartRecord,
    uuid: str | None,
    series: str,
    at_ns: NDArray[np.int64],
    value: NDArray[Any],
    brackets: Mapping[str, NDArray[np.int64]] | None = None,
    *,
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


def _requests(table: pa.Table) -> dict[int, list[RequestRecord]]:
    """Return the requests of each pass, by its number."""
    requests: dict[int, list[RequestRecord]] = {}
    columns = [table[name].to_pylist() for name in REQUEST_FIELDS]
    ids_at = REQUEST_FIELDS.index("output_ids")
    columns[ids_at] = [None if ids is None else tuple(ids) for ids in columns[ids_at]]
    for number, *values in zip(table["pass"].to_pylist(), *columns, strict=True):
        requests.setdefault(number, []).append(RequestRecord(**dict(zip(REQUEST_FIELDS, values, strict=True))))
    return requests


class _Samples:
    """Takes arrays out of a timeline's table, one after the other in the order in which they were written."""

    def __init__(self, table: pa.Table) -> None:
        self._table, self._next = table, 0

    def take(self, length: int, columns: Sequence[str] = ("at_ns", "value")) -> list[NDArray[Any]]:
        """Return the next `length` elements of these columns."""
        part = self._table.slice(self._next, length)
        if len(part) < length:
            raise ValueError(f"{TIMELINE} ends after {len(self._table)} samples")
        self._next += length
        return [part[name].to_numpy() for name in columns]

    def require_end(self) -> None:
        """Raise ValueError where samples are left."""
        if self._next != len(self._table):
            raise ValueError(f"{TIMELINE} has {len(self._table)} samples, not {self._next}")


def _filled(bare: RestartRecord, requests: Mapping[int, list[RequestRecord]], samples: _Samples) -> RestartRecord:
    """Return a record with its tables' content in place of what record.json says of their lengths."""

    def filled(measured: PassRecord) -> PassRecord:
        at_ns, counts = samples.take(len(measured.tokens.at_ns))
        tokens = TokenSeries(at_ns, counts.astype(np.int64))
        return dataclasses.replace(measured, requests=tuple(requests.get(measured.index, ())), tokens=tokens)

    passes = tuple(map(filled, bare.passes))
    timeline = bare.timeline and _filled_timeline(bare.timeline, samples)
    samples.require_end()
    return dataclasses.replace(bare, passes=passes, timeline=timeline)


def _filled_timeline(bare: Timeline, samples: _Samples) -> Timeline:
    def series(every: Mapping[str, Series]) -> dict[str, Series]:
        return {name: Series(*samples.take(len(empty.at_ns))) for name, empty in every.items()}

    def gpu(empty: GpuTimeline) -> GpuTimeline:
        *brackets, energy_mj = samples.take(len(empty.ticks.energy_mj), (*BRACKETS, "value"))
        ticks = Ticks(*(column.astype(np.int64) for column in (*brackets, energy_mj)))
        return dataclasses.replace(empty, ticks=ticks, series=series(empty.series))

    gpus = {uuid: gpu(empty) for uuid, empty in bare.gpus.items()}
    host = bare.host and dataclasses.replace(bare.host, energy_j=series(bare.host.energy_j))
    return dataclasses.replace(bare, gpus=gpus, host=host)


def _encode(value: Any) -> Any:
    """Return a value as JSON has it; of an array its length, of requests nothing: tables hold those."""
    if isinstance(value, np.ndarray):
        return len(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, PassRecord):
            fields["requests"] = ()
        return {name: _encode(part) for name, part in fields.items()}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, collections.abc.Mapping):
        return {key: _encode(part) for key, part in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_encode(part) for part in value]
    return value


def _decode(kind: Any, data: Any) -> Any:
    """Return `data` as a value of the type `kind`, one of those that records are made of; arrays only by length."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _decode(next(part for part in parts if part is not types.NoneType), data)
    # numpy's alias is a class of its own from 2.5 on, under Python 3.12 and newer.
    if origin in (np.ndarray, NDArray):
        return np.zeros(data, dtype=np.int64)
    if origin is frozenset:
        return frozenset(data)
    if origin is tuple:
        return tuple(_decode(parts[0], part) for part in data)
    if origin is collections.abc.Mapping:
        return {key: _decode(parts[1], part) for key, part in data.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _decode(hints[name], part) for name, part in data.items()})
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_validate(data)
    if kind is float:
        # JSON has no infinity; it is written as a text.
        return float(data) if isinstance(data, str) else data
    if origin is not Literal and kind not in PLAIN:
        raise TypeError(f"nothing here reads a {kind}")
    return data


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns=NAMES)
