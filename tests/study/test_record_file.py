"""What was measured reads back from disk to the last bit."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from merge_samples import constant_power, measured, request, timeline

from wattdock.clock import ClockCheck
from wattdock.errors import StoreError
from wattdock.execution.record_file import Served, _decode, read_served, write_served
from wattdock.inputs import ModelFolder
from wattdock.metering.timeline import GpuProcess, LagModel, MeterEvent, ProcessSample, Series, Span
from wattdock.records.environment import RunnerEnvironment, RunnerGpu
from wattdock.records.failure import Failure
from wattdock.records.restart import Loaded, RestartRecord, WarmUpSample


def full() -> Served:
    """Return a record in which nothing is left out."""
    gpu = dataclasses.replace(
        constant_power("GPU-a", 600, start_s=0, end_s=4),
        series={"power_w": Series(np.array([1, 2]), np.array([0.1, 1 / 3]))},
        processes=(ProcessSample(5, (GpuProcess(1, "compute", None), GpuProcess(2, "mps", 7))),),
        events=(MeterEvent(9, "gap", "0.3 s"),),
        busy_fraction=0.25,
        lag=LagModel(0.021, 0.002),
        card="2026-01-01T00:00:00+00:00",
    )
    one = dataclasses.replace(
        request(0, 1, 1.5, 2, 3), intended_ns=5, text="a “text”\n", output_ids=(1, 2, 3), cached_prompt_tokens=0
    )
    environment = RunnerEnvironment(
        visible_gpus=[RunnerGpu(uuid="GPU-a", name="x", vram_total_bytes=1)],
        framework="fake",
        python_version="3",
        engine_args={"a": [1, None, {"b": 0.1}]},
    )
    record = RestartRecord(
        restart=2,
        spans=(Span("load", 1, 2, drained=True), Span("launch", 0, 1)),
        passes=(measured(1, 1, 2, (one, request(1, 1, 1.2, 2, 3))),),
        loaded=Loaded(environment, (Span("load", 1, 2),)),
        clock_checks=(ClockCheck("boot", 12),),
        timeline=timeline(gpu),
        warm_up=(WarmUpSample(Span("warm-up", 1, 2), 7, None, {"GPU-a temperature_c": 50.5}),),
        one_token=(measured(0, 3, 4, (one,)).generated,),
        failure=Failure(kind="RunnerError", message="m", stage="pass 2", exit_code=5, log_tail="t"),
    )
    model = ModelFolder(
        Path("/m"), "shape", "tiny", "config-sha256:1", False, True, 9, config={"vocab_size": 7, "rope": {"type": None}}
    )
    return Served("e" * 64, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), model, record)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type and content, arrays and all."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Every field of every part, with its type; a row that is resumed must not differ from one that was not."""
    write_served(full(), tmp_path / "x.npz")
    assert same(read_served(tmp_path / "x.npz"), full())
    assert [file.name for file in tmp_path.iterdir()] == ["x.npz"]


def test_what_is_missing_stays_missing(tmp_path: Path) -> None:
    """None is not zero, nor an empty list."""
    bare = Served("e", datetime(2026, 1, 1, tzinfo=UTC), None, RestartRecord(0))
    write_served(bare, tmp_path / "x.npz")
    assert same(read_served(tmp_path / "x.npz"), bare)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x04", b"{}"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: bytes) -> None:
    """And nothing in it is executed."""
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.npz: .* Remove it to measure"):
        read_served(tmp_path / "x.npz")


def test_every_cut_of_a_record_is_refused(tmp_path: Path) -> None:
    """Half a record must not pass for a whole one."""
    file = tmp_path / "x.npz"
    write_served(full(), file)
    whole = file.read_bytes()
    for size in range(0, len(whole), 97):
        file.write_bytes(whole[:size])
        with pytest.raises(StoreError):
            read_served(file)


def test_a_type_that_nothing_reads_is_refused() -> None:
    """Text in place of an array would show only where the result is stored, and cost it."""
    with pytest.raises(TypeError, match="nothing here reads a set"):
        _decode(set[int], ["a0"], {})
