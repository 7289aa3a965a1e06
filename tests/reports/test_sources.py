"""What a page says its joules and its drawn power were made of."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from make.rows import row, with_timeline
from seams.records import COUNTER
from seams.reports import page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wattdock.store import StoredResult

UUID = "GPU-00000000-0000-0000-0000-000000000001"
WITHOUT = {"energy.source": "integrated_power", f"gpus.{UUID}.source": "integrated_power"}
# What a page names as sources: counters, and the driver's readings.
Named = tuple[bool, bool]
COUNTERS, READINGS = (True, False), (False, True)
BOTH = (True, True)


def with_counter(folder: Path) -> StoredResult:
    """Return a result of a GPU with an energy counter."""
    folder.mkdir()
    return with_timeline(row("counter"), folder, {(UUID, COUNTER): [at * 30_000.0 for at in range(20)]})


def with_readings(folder: Path) -> StoredResult:
    """Return a result of a GPU without one."""
    folder.mkdir()
    return with_timeline(row("readings", WITHOUT), folder, {(UUID, "power_w"): [300.0] * 20})


@pytest.mark.parametrize(
    ("made", "power"),
    [
        ([with_counter], COUNTERS),
        # Of power that nobody sees, nothing is said.
        ([lambda _: row("none", {"energy.source": None})], None),
        ([with_readings], READINGS),
        ([with_counter, with_readings], BOTH),
    ],
)
def test_the_page_says_what_drawn_power_was_made_of(
    tmp_path: Path, made: list[Callable[[Path], StoredResult]], power: tuple[bool, bool] | None
) -> None:
    """Counters, the driver's readings, or each, in several results or in one over two kinds of GPUs."""
    results = [make(tmp_path / str(number)) for number, make in enumerate(made)]
    text = page(results, title="a title", written=datetime(2026, 1, 1, tzinfo=UTC))
    timeline = re.search(r"Power is ([^.]*)[.]", text)
    assert (named(timeline[1]) if timeline else None) == power


def named(sentence: str) -> Named:
    """Return whether a sentence names counters as a source, and the driver's readings."""
    return "counter" in sentence.replace("without an energy counter", ""), "readings" in sentence
