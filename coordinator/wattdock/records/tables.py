"""A record's three tables: requests, steps of the engine, and samples of the timeline.

A field of `RequestRecord` or `Steps` is a column behind the restart and the pass; null is unknown.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.records.passes import Steps
from wattdock.records.request import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from wattdock.records.passes import PassRecord
    from wattdock.records.restart import RestartRecord

    Plain = dict[str, Any]

REQUESTS, STEPS, TIMELINE = "requests.parquet", "steps.parquet", "timeline.parquet"
# Names of the series of the energy counter and of the runner's tokens; a name ends in its unit.
COUNTER, TOKENS = "energy_counter_mj", "output_tokens"
BRACKETS = ("before_start_ns", "before_end_ns", "after_start_ns", "after_end_ns")


@functools.cache
def schemas() -> dict[str, pa.Schema]:
    """Return the columns of each table by its file's name.

    timeline.parquet has one row per sample: restart; pass (null outside of passes, negative where questions of
    `quality:` are answered); clock (identity of the clock of `at_ns`); gpu_uuid (null for the runner's tokens and for
    the host's own counters, host_…_j, in joules since the meter began); series, whose name ends in its unit; at_ns;
    value; and the calls that bracket each change of the energy counter.
    """
    import pyarrow as pa

    restart, number = (pa.field(name, pa.int32(), nullable=False) for name in ("restart", "pass"))
    kinds = {"int": pa.int64(), "str": pa.string(), "tuple[int, ...]": pa.list_(pa.int64())}
    unsigned = {"prompt_hash": pa.uint64(), "output_ids": pa.list_(pa.uint32())}
    request = [(field.name, kinds[str(field.type).removesuffix(" | None")]) for field in fields(RequestRecord)]
    text = pa.dictionary(pa.int16(), pa.string())
    sample = [
        *(pa.field(name, text, nullable=name != "series") for name in ("clock", "gpu_uuid", "series")),
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        *(pa.field(bracket, pa.int64()) for bracket in BRACKETS),
    ]
    return {
        REQUESTS: pa.schema([restart, number, *((name, unsigned.get(name, kind)) for name, kind in request)]),
        STEPS: pa.schema([restart, number, *((field.name, pa.int64()) for field in fields(Steps))]),
        TIMELINE: pa.schema([restart, number.with_nullable(True), *sample]),
    }


def tables_of(record: RestartRecord) -> dict[str, pa.Table]:
    """Return a record's tables by file."""
    import pyarrow as pa

    requests = [
        {"restart": record.restart, "pass": run_pass.index, **vars(request)}
        for run_pass in record.all_passes
        for request in run_pass.requests
    ]
    steps, samples = [schemas()[STEPS].empty_table()], [schemas()[TIMELINE].empty_table()]
    for run_pass in record.all_passes:
        known = {name: values for name, values in vars(run_pass.steps).items() if len(values)}
        rows = len(run_pass.steps.start_ns)
        steps.append(_table(STEPS, rows, {"restart": record.restart, "pass": run_pass.index, **known}))
    for series in _samples(record):
        at_ns = series["at_ns"]
        of_all = {"restart": record.restart, "pass": _pass_at(at_ns, record.all_passes), "clock": record.clock}
        samples.append(_table(TIMELINE, len(at_ns), of_all | series))
    return {
        REQUESTS: pa.Table.from_pylist(requests, schema=schemas()[REQUESTS]),
        STEPS: pa.concat_tables(steps),
        TIMELINE: pa.concat_tables(samples),
    }


def _table(name: str, rows: int, columns: Mapping[str, object]) -> pa.Table:
    """Return a part of a table; a column that is no array holds its value in every row, null where it is missing."""
    import pyarrow as pa

    schema = schemas()[name]
    values = {field: columns.get(field.name) for field in schema}
    arrays = [
        pa.array(value if isinstance(value, np.ndarray | pa.Array) else [value] * rows, field.type)
        for field, value in values.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _samples(record: RestartRecord) -> Iterator[dict[str, Any]]:
    """Yield the columns of each series."""
    for run_pass in record.all_passes:
        tokens = run_pass.tokens
        yield {"pass": run_pass.index, "series": TOKENS, "at_ns": tokens.at_ns, "value": tokens.output_tokens}
    for uuid, gpu in record.gpus.items():
        brackets = {name: getattr(gpu.ticks, name) for name in BRACKETS}
        counter = {"series": COUNTER, "at_ns": gpu.ticks.after_end_ns, "value": gpu.ticks.energy_mj}
        yield {"gpu_uuid": uuid, **counter, **brackets}
        for name, series in gpu.series.items():
            yield {"gpu_uuid": uuid, "series": name, **vars(series)}
    host = record.timeline.host if record.timeline else None
    for domain, series in (host.energy_j if host else {}).items():
        yield {"series": f"host_{domain}_j", **vars(series)}


def _pass_at(at_ns: NDArray[np.int64], passes: Sequence[PassRecord]) -> pa.Array:
    """Return the pass that each instant lies in, null outside all of them."""
    import pyarrow as pa

    number, outside = np.zeros(len(at_ns), dtype=np.int32), np.ones(len(at_ns), dtype=bool)
    for run_pass in passes:
        inside = (at_ns >= run_pass.span.start_ns) & (at_ns <= run_pass.span.end_ns)
        number[inside], outside[inside] = run_pass.index, False
    return pa.array(number, mask=outside)


def fill_in(plain: Plain, tables: Mapping[str, pa.Table]) -> None:
    """Put the tables' content into what record.json holds, in place of the arrays' lengths.

    Raises:
        ValueError: A table holds another number of rows.
    """
    requests: dict[int, list[Plain]] = {}
    for row in tables[REQUESTS].to_pylist():
        del row["restart"]
        requests.setdefault(row.pop("pass"), []).append(row)
    steps, samples = _Rows(STEPS, tables[STEPS]), _Rows(TIMELINE, tables[TIMELINE])
    asked = (run_pass for evaluation in plain.get("evaluations", ()) for run_pass in evaluation["passes"])
    for run_pass in (*plain["passes"], *asked):
        run_pass["requests"] = requests.get(run_pass["index"], [])
        run_pass["steps"] = steps.take(run_pass["steps"], "pass", run_pass["index"])
        run_pass["tokens"] = samples.take(run_pass["tokens"], "series", TOKENS)
    timeline = plain["timeline"] or {"gpus": {}, "host": None}
    for gpu in timeline["gpus"].values():
        gpu["ticks"] = samples.take(gpu["ticks"], "series", COUNTER)
        gpu["series"] = {name: samples.take(lengths, "series", name) for name, lengths in gpu["series"].items()}
    if host := timeline["host"]:
        host["energy_j"] = {
            domain: samples.take(lengths, "series", f"host_{domain}_j") for domain, lengths in host["energy_j"].items()
        }


class _Rows:
    """Hands out the rows of a table in the order in which they were written."""

    def __init__(self, name: str, table: pa.Table) -> None:
        self._name, self._table, self._first = name, table, 0

    def take(self, lengths: Mapping[str, int], key: str, value: object) -> dict[str, NDArray[Any]]:
        """Return the next arrays by field; `value` is what the column `key` holds in all of their rows.

        Args:
            lengths: The length of each array, as record.json has them; 0 where a figure is unknown.
        """
        count = max(lengths.values())
        rows, self._first = self._table.slice(self._first, count), self._first + count
        wrong_lengths = {*lengths.values()} - {len(rows)} - ({0} if self._name == STEPS else set())
        if wrong_lengths or not {*rows[key].unique().to_pylist()} <= {value}:
            raise ValueError(f"{self._name} holds {len(rows)} rows of {key} {value}, not {count}")
        arrays = {}
        for field, length in lengths.items():
            column = rows[field if field in rows.column_names else "value"].slice(0, length)
            arrays[field] = column.to_numpy().astype(np.float64 if field == "value" else np.int64)
        return arrays
