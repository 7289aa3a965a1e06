"""What a stored run saw, read back from its files, so that it can be analysed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.errors import StoreError
from wattdock.metering import GpuTimeline, LagModel, Series, Span, Ticks, Timeline, period_s
from wattdock.records import GeneratedPass, MeasuredPass, RequestRecord, RestartRecord, TokenSeries
from wattdock.store.folders import REQUESTS, TIMELINE
from wattdock.store.tables import BRACKETS, CLOCK, COUNTER, TOKENS
from wattdock.values import known_sum

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from wattdock.analysis import ExperimentResult, MeterFact, PassEnergy

Rows = dict[str, Any]


def load_restarts(folder: Path, result: ExperimentResult) -> tuple[RestartRecord, ...]:
    """Return the restarts of a stored run: spans, passes, requests and timelines; not its processes and events.

    A restart that was cut in two by a reboot of the host is two: each part is read by its own clock.

    Raises:
        StoreError: A file of the run is missing or cannot be read.
    """
    import pyarrow as pa

    timeline, requests = (_table(folder / name) for name in (TIMELINE, REQUESTS))
    parts = sorted({(span.restart, span.clock) for span in result.spans})
    try:
        return tuple(_restart(number, clock, result, timeline, requests) for number, clock in parts)
    except (KeyError, pa.ArrowException) as error:
        raise StoreError(
            f"{folder}: {TIMELINE} or {REQUESTS} does not hold what was stored ({error}); bring it back"
        ) from error


def _table(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: {error}; the run cannot be analysed anew without it") from error


def _restart(
    number: int, clock: int, result: ExperimentResult, timeline: pa.Table, requests: pa.Table
) -> RestartRecord:
    import pyarrow.compute as pc

    timeline = timeline.filter(pc.field("restart") == number)
    if CLOCK in timeline.column_names:
        timeline = timeline.filter(pc.field(CLOCK) == clock)
    requests = requests.filter(pc.field("restart") == number)
    own = [span for span in result.spans if (span.restart, span.clock) == (number, clock)]
    stored = {one.pass_index: one for one in (result.energy.passes if result.energy else ()) if one.restart == number}
    measured = [
        _pass(Span(span.name, span.start_ns, span.end_ns, span.drained), stored[span.pass_index], timeline, requests)
        for span in own
        if span.pass_index is not None
    ]
    spans = tuple(Span(one.name, one.start_ns, one.end_ns, one.drained) for one in own if one.pass_index is None)
    identities = result.environment.clock.identities if result.environment else []
    return RestartRecord(
        number,
        spans=spans,
        passes=tuple(measured),
        timeline=_timeline(result, timeline),
        clock=identities[clock] if clock < len(identities) else "",
    )


def _pass(span: Span, stored: PassEnergy, timeline: pa.Table, requests: pa.Table) -> MeasuredPass:
    import pyarrow.compute as pc

    rows = requests.filter(pc.field("pass") == stored.pass_index).drop_columns(["restart", "pass"]).to_pylist()
    of_pass = (pc.field("pass") == stored.pass_index) & (pc.field("series") == TOKENS)
    tokens = timeline.filter(of_pass).sort_by("at_ns")
    counts = TokenSeries(_column(tokens, "at_ns"), _column(tokens, "value").astype(np.int64))
    records = tuple(_request(row) for row in rows)
    generated = GeneratedPass(
        span=span,
        requests=records,
        tokens=counts,
        output_tokens=stored.output_tokens,
        prompt_tokens=known_sum(one.prompt_tokens for one in records),
        cached_prompt_tokens=known_sum(one.cached_prompt_tokens for one in records),
        prompt_repeats=stored.prompt_repeats,
    )
    others = stored.cpu_others_share
    return MeasuredPass(stored.pass_index, generated, None, "", stored.prompts_reused, cpu_others_share=others)


def _request(row: Rows) -> RequestRecord:
    ids = row.pop("output_ids")
    return RequestRecord(**row, output_ids=None if ids is None else tuple(ids))


def _timeline(result: ExperimentResult, table: pa.Table) -> Timeline:
    facts = result.energy.meter if result.energy else {}
    gpus = {uuid: _gpu(uuid, fact, table) for uuid, fact in facts.items()}
    at_ns = _column(table, "at_ns")
    start_ns, end_ns = (int(at_ns.min()), int(at_ns.max())) if len(at_ns) else (0, 0)
    reason = result.energy.reason if result.energy and not gpus else None
    return Timeline(result.environment.meter if result.environment else "none", start_ns, end_ns, gpus, reason)


def _gpu(uuid: str, fact: MeterFact, table: pa.Table) -> GpuTimeline:
    import pyarrow.compute as pc

    table = table.filter(pc.field("gpu_uuid") == uuid).sort_by("at_ns")
    names = [name for name in table["series"].unique().to_pylist() if name != COUNTER]
    counter = table.filter(pc.field("series") == COUNTER)
    brackets = {name: _column(counter, name) for name in BRACKETS}
    ticks = Ticks(**brackets, energy_mj=_column(counter, "value").astype(np.int64))
    series = {}
    for name in names:
        rows = table.filter(pc.field("series") == name)
        series[name] = Series(_column(rows, "at_ns"), _column(rows, "value"))
    source: Any = fact.source
    known = fact.counter_lag_s is not None and fact.counter_lag_std_s is not None
    lag = LagModel(fact.counter_lag_s or 0.0, fact.counter_lag_std_s or 0.0) if known else None
    return GpuTimeline(
        uuid=uuid, energy_source=source, ticks=ticks, series=series, period_s=period_s(ticks), lag=lag, card=fact.card
    )


def _column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy()
