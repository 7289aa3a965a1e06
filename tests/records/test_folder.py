"""What was measured reads back from disk to the last bit."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden.replay import HERE, load_inputs, restarts_of
from make.records import constant_power, measured, request, timeline
from make.rows import document
from refused import raises
from seams.metering import HostTimeline, ProcessSample, Series
from seams.records import LATER_KEYS, NEWER, RECORD, REQUESTS, STEPS, TIMELINE, DeclaredWork, Steps

from wattdock.clock import NS_PER_S, ClockCheck
from wattdock.errors import Cause, StoreError
from wattdock.host import GpuProcess
from wattdock.metering import GpuTimeline, MeterEvent, Span
from wattdock.owned_folder import OwnedFolder
from wattdock.records import EnvironmentSnapshot, Evaluation, Failure, PassRecord, RestartRecord, disk

if TYPE_CHECKING:
    from pathlib import Path


def reread(folder: Path) -> RestartRecord:
    with OwnedFolder.open(folder) as opened:
        return disk.read(opened)


def full() -> RestartRecord:
    """Return a record in which nothing is left out."""
    gpu = dataclasses.replace(
        constant_power("GPU-a", 600, start_s=0, end_s=4),
        series={"power_w": Series(np.array([1, 2]), np.array([0.1, 1 / 3])), "none": EMPTY},
        processes=(ProcessSample(5, (GpuProcess(1, "compute", None), GpuProcess(2, "mps", 7))),),
        events=(MeterEvent(9, "gap", 10, {"interval_s": 0.3}, "counter", "its words"),),
        busy_fraction=0.25,
        boundary="module",
    )
    seen = request(0, 1, 1.5, 2, 3)
    seen = dataclasses.replace(
        seen, intended_ns=5, text="a “text”\n", output_ids=(1, 2, 3), cached_prompt_tokens=0, replica=1
    )
    numbers = np.arange(4)
    steps = Steps(numbers, numbers + 1, numbers * 7, numbers, numbers, numbers[:0])
    host = HostTimeline({"package-0": Series(np.array([1, 5]), np.array([0.0, float("inf")]))}, gpu.events)
    return RestartRecord(
        restart=2,
        started_utc="2026-01-02T03:04:05.678+00:00",
        environment=EnvironmentSnapshot.model_validate(document()["environment"]),
        architecture={"vocab_size": 7, "rope": {"type": None}},
        spans=(Span("load", 1, 2), Span("launch", 0, 1)),
        passes=(
            dataclasses.replace(measured(1, 1, 2, (seen, request(1, 1, 1.2, 2, 3))), steps=steps),
            measured(3, 3, 4, ()),
        ),
        clock_checks=(ClockCheck("boot", 12),),
        timeline=dataclasses.replace(timeline(gpu), host=host),
        failure=Failure(kind="RunnerError", message="m", stage="pass 2", exit_code=5, log_tail="t"),
        runner_pids=frozenset({4, 5}),
        clock="boot 1",
    )


EMPTY = Series(np.zeros(0, dtype=np.int64), np.zeros(0))


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal in type and content, arrays and all."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and bool(np.array_equal(first, second))
    if dataclasses.is_dataclass(first):
        return all(same(getattr(first, part.name), getattr(second, part.name)) for part in dataclasses.fields(first))
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    return bool(first == second) or (isinstance(first, float) and math.isnan(first) and math.isnan(second))


@pytest.mark.parametrize("record", [full(), RestartRecord(0)], ids=["full", "bare"])
def test_a_record_reads_back_as_it_was_written(tmp_path: Path, record: RestartRecord) -> None:
    """Every field of every part, with its type: a resumed row must not differ, and None is not zero."""
    disk.write(record, tmp_path / "x")
    assert same(reread(tmp_path / "x"), record)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_each_sample_names_the_pass_in_which_it_was_taken(tmp_path: Path) -> None:
    """Passes with questions are negative, as in the other tables; between passes there is none."""
    gpu = constant_power("GPU-a", 600, start_s=0, end_s=8)
    asked = dataclasses.replace(measured(0, 5, 6, ()), index=-1)
    record = RestartRecord(
        0, passes=(measured(0, 1, 2, ()), measured(1, 3, 4, ())), evaluations=(Evaluation("code", passes=(asked,)),)
    )
    disk.write(dataclasses.replace(record, timeline=timeline(gpu)), tmp_path / "x")
    rows = pq.read_table(tmp_path / "x" / TIMELINE, filters=[("series", "=", "energy_counter_mj")]).to_pylist()
    by_second = {second: [row["pass"] for row in rows if row["at_ns"] // NS_PER_S == second] for second in range(8)}
    whole = {second: passes[1] for second, passes in by_second.items() if len({*passes[1:]}) == 1}
    assert whole == {0: None, 1: 0, 2: None, 3: 1, 4: None, 5: -1, 6: None, 7: None}


@pytest.mark.parametrize("name", ["fake-full", "fake-replicas", "fake-rapl", "h200-two-gpus", "world-faulty"])
def test_recorded_restarts_read_back_to_the_last_bit(tmp_path: Path, name: str) -> None:
    """With the series, processes and events of real runs."""
    for record in restarts_of(*load_inputs(HERE / name)):
        disk.write(record, tmp_path / "x")
        assert same(reread(tmp_path / "x"), record)


def test_a_newer_state_replaces_the_older_one_whole_whenever_it_is_cut_off(tmp_path: Path) -> None:
    """A power cut may come between the two renames, and while the older state is being removed."""
    older, newer = RestartRecord(0), RestartRecord(1)
    disk.write(older, tmp_path / "x")
    disk.write(newer, tmp_path / "x")
    assert reread(tmp_path / "x") == newer
    (tmp_path / "x").rename(tmp_path / f"x{NEWER}")
    disk.write(older, tmp_path / "y")
    (tmp_path / "y").rename(tmp_path / "x")
    (tmp_path / "x" / RECORD).unlink()
    assert disk.find(tmp_path) == [tmp_path / "x"]
    assert reread(tmp_path / "x") == newer


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"restart": {}, "more": 1}'])
@pytest.mark.parametrize("name", [RECORD, REQUESTS, STEPS, TIMELINE])
def test_a_file_that_is_no_records_is_told(tmp_path: Path, name: str, content: bytes) -> None:
    """And nothing in it is executed."""
    disk.write(full(), tmp_path / "x")
    (tmp_path / "x" / name).write_bytes(content)
    with raises(StoreError, "x"):
        reread(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "column", "values", "value"),
    [
        (REQUESTS, "submitted_ns", [2**63 - 1] * 2, 2**63 - 1),
        (REQUESTS, "output_tokens", [-1, 1], -1),
        (REQUESTS, "index", ["x", "y"], "x"),
        (TIMELINE, "value", None, "null"),
    ],
)
def test_a_table_of_figures_that_cannot_be_is_refused(
    tmp_path: Path, name: str, column: str, values: list[Any] | None, value: object
) -> None:
    """Before anything is computed of them."""
    disk.write(full(), tmp_path / "x")
    file = tmp_path / "x" / name
    whole = pq.ParquetFile(file).read()
    changed = pa.array([None] * len(whole) if values is None else values)
    pq.write_table(whole.set_column(whole.column_names.index(column), column, changed), file)
    with raises(StoreError, value, cause=Cause.MALFORMED):
        reread(tmp_path / "x")


def test_a_small_file_cannot_claim_a_memory_full_of_rows(tmp_path: Path) -> None:
    """Equal rows take no room in a file."""
    disk.write(full(), tmp_path / "x")
    file = tmp_path / "x" / REQUESTS
    pq.write_table(pq.ParquetFile(file).read().slice(0, 1).take([0] * 1_000_000), file)
    with raises(StoreError, "1,000,000", cause=Cause.MALFORMED):
        reread(tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (("started_utc", "yesterday"), "yesterday"),
        (("passes", 0, "span", "end_ns", 0), "passes.0.span"),
        (("spans", 0, "end_ns", 0), "spans.0"),
        (("spans", 0, "end_ns", 2**63), 2**63),
        (("restart", 2**63), 2**63),
        (("passes", 0, "span", "end_ns", 10**400), "1000"),
        (("passes", 0, "output_tokens", -1), -1),
    ],
)
def test_a_record_of_figures_that_cannot_be_is_refused(tmp_path: Path, change: tuple[Any, ...], seen: object) -> None:
    """Analysis would end with a traceback."""
    disk.write(full(), tmp_path / "x")
    file = tmp_path / "x" / RECORD
    plain = place = json.loads(file.read_text())
    *names, last, value = change
    for name in names:
        place = place[name]
    place[last] = value
    file.write_text(json.dumps(plain))
    with raises(StoreError, seen, cause=Cause.MALFORMED):
        reread(tmp_path / "x")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ((), RestartRecord),
        (("passes", 0), PassRecord),
        (("passes", 0, "declared"), DeclaredWork),
        (("timeline", "gpus", "GPU-a"), GpuTimeline),
    ],
)
def test_a_record_without_a_key_is_refused(tmp_path: Path, place: tuple[Any, ...], kind: Any) -> None:
    """A default would pass the audit in place of evidence: no repeated prompts, nothing declared, GPU boards."""
    disk.write(full(), tmp_path / "x")
    file = tmp_path / "x" / RECORD
    text = file.read_text()
    for name in {item.name for item in dataclasses.fields(kind)} - {"requests"} - LATER_KEYS:
        plain = part = json.loads(text)
        for step in place:
            part = part[step]
        del part[name]
        file.write_text(json.dumps(plain))
        with raises(StoreError, name):
            reread(tmp_path / "x")


@pytest.mark.parametrize("name", [STEPS, TIMELINE])
def test_a_table_of_another_length_is_refused(tmp_path: Path, name: str) -> None:
    """Half a timeline must not pass for a whole one."""
    disk.write(full(), tmp_path / "x")
    file = tmp_path / "x" / name
    whole = pq.ParquetFile(file).read()
    for table in (whole.slice(0, len(whole) - 1), whole.slice(0, 0)):
        pq.write_table(table, file)
        with raises(StoreError, "x", cause=Cause.MALFORMED):
            reread(tmp_path / "x")


def test_a_text_that_every_row_names_is_not_written_out_beyond_a_gigabyte(tmp_path: Path) -> None:
    """A file of 43 kB held 15,000 answers of 10 MB, 150 GB in memory."""
    disk.write(full(), tmp_path / "record")
    file, rows = tmp_path / "record" / REQUESTS, 15_000
    assert file.stat().st_size * 8 > rows
    table = pq.read_table(file)
    many = table.take(pa.array([0] * rows))
    answers = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 10_000_000]))
    many = many.set_column(many.column_names.index("text"), "text", answers)
    pq.write_table(many, file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 100_000
    with raises(StoreError, "150", cause=Cause.MALFORMED):
        reread(tmp_path / "record")


def test_nobody_else_can_write_a_record_whatever_the_umask(tmp_path: Path) -> None:
    """It is taken for measured when the study goes on."""
    before = os.umask(0o002)
    try:
        disk.write(full(), tmp_path / "x")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in ((tmp_path / "x"), *(tmp_path / "x").iterdir())}
    assert modes == {0o755, 0o644}


def test_steps_of_a_clockwork_engine_read_back(tmp_path: Path) -> None:
    """Evenly spaced instants take next to no room in a file: as many rows are no forged header."""
    at_ns = np.arange(100_000) * 1_000_000
    same = np.ones_like(at_ns)
    steps = Steps(at_ns, at_ns + 900_000, same, same, same, same)
    record = RestartRecord(0, passes=(dataclasses.replace(measured(0, 0, 100, ()), steps=steps),))
    disk.write(record, tmp_path / "even")
    assert (tmp_path / "even" / STEPS).stat().st_size < 20_000
    [read] = reread(tmp_path / "even").passes
    np.testing.assert_array_equal(read.steps.end_ns, steps.end_ns)
