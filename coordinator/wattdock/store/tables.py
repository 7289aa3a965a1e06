"""Timelines and requests as Arrow tables, one row per sample or request. Pure."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from wattdock.records import clocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wattdock.records import MeasuredPass, RequestRecord, RestartRecord

# Series that are not the meter's; the unit stands in the name.
COUNTER, TOKENS, CLOCK = "energy_counter_mj", "output_tokens", "clock"
BRACKETS = ("before_start_ns", "before_end_ns", "after_start_ns", "after_end_ns")
TIMELINE_SCHEMA = pa.schema(
    [
        pa.field("restart", pa.int32(), nullable=False),
        pa.field("pass", pa.int32()),
        pa.field(CLOCK, pa.int16()),
        pa.field("gpu_uuid", pa.dictionary(pa.int16(), pa.string())),
        pa.field("series", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        *(pa.field(name, pa.int64()) for name in BRACKETS),
    ]
)
REQUESTS_SCHEMA = pa.schema(
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


def timeline_table(restarts: Sequence[RestartRecord]) -> pa.Table:
    """Return every sample of every restart.

    Columns: restart; pass (null outside the measured ones); clock (which one `at_ns` is of); gpu_uuid (null for the
    runner's tokens and the host's own counters, host_…_j, joules since the meter began); series, named with its unit;
    at_ns; value; and for the energy counter's changes the calls that bracket each.
    """
    clocks = clocks_of(restarts)
    parts = [part for restart in restarts for part in _restart_parts(restart, clocks[restart.clock])]
    return pa.concat_tables(parts) if parts else TIMELINE_SCHEMA.empty_table()


def requests_table(restarts: Sequence[RestartRecord]) -> pa.Table:
    """Return every request of every measured pass, one row each."""
    rows = [
        _request_row(restart.restart, one, request)
        for restart in restarts
        for one in restart.passes
        for request in one.generated.requests
    ]
    return pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA)


def _restart_parts(restart: RestartRecord, clock: int) -> Iterator[pa.Table]:
    part = functools.partial(_part, restart, clock)
    for one in restart.passes:
        tokens = one.generated.tokens
        yield part(None, TOKENS, tokens.at_ns, tokens.output_tokens)
    for uuid, gpu in restart.gpus.items():
        brackets = {name: getattr(gpu.ticks, name) for name in BRACKETS}
        yield part(uuid, COUNTER, gpu.ticks.after_end_ns, gpu.ticks.energy_mj, brackets)
        for name, series in gpu.series.items():
            yield part(uuid, name, series.at_ns, series.value)
    host = restart.timeline.host if restart.timeline else None
    for name, series in (host.energy_j if host else {}).items():
        yield part(None, f"host_{name}_j", series.at_ns, series.value)


def _part(
    restart: RestartRecord,
    clock: int,
    uuid: str | None,
    series: str,
    at_ns: NDArray[np.int64],
    value: NDArray[Any],
    brackets: dict[str, NDArray[np.int64]] | None = None,
) -> pa.Table:
    count = len(at_ns)
    columns: dict[str, Any] = {
        "restart": np.full(count, restart.restart, dtype=np.int32),
        "pass": _pass_at(at_ns, restart.passes),
        CLOCK: np.full(count, clock, dtype=np.int16),
        "gpu_uuid": pa.array([uuid] * count, pa.string()).dictionary_encode(),
        "series": pa.array([series] * count, pa.string()).dictionary_encode(),
        "at_ns": at_ns,
        "value": np.asarray(value, dtype=np.float64),
    }
    columns |= brackets or {name: pa.nulls(count, pa.int64()) for name in BRACKETS}
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in TIMELINE_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=TIMELINE_SCHEMA)


def _pass_at(at_ns: NDArray[np.int64], passes: Sequence[MeasuredPass]) -> pa.Array:
    """Return the measured pass that each instant lies in, null outside all of them."""
    index = np.zeros(len(at_ns), dtype=np.int32)
    outside = np.ones(len(at_ns), dtype=bool)
    for one in passes:
        inside = (at_ns >= one.generated.span.start_ns) & (at_ns <= one.generated.span.end_ns)
        index[inside] = one.index
        outside &= ~inside
    return pa.array(index, mask=outside)


def _request_row(restart: int, one: MeasuredPass, request: RequestRecord) -> dict[str, Any]:
    return {"restart": restart, "pass": one.index, **vars(request)}
