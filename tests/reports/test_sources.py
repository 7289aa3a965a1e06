"""What a page says its joules and its drawn power were made of."""

from __future__ import annotations

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
COUNTS_J = "the GPUs' own energy counters, interpolated between their changes"
READS_J = "the driver's power readings, integrated from one to the next"
COUNTS_W = "energy between two changes of a GPU's counter ÷ the time between them"
READS_W = "the driver's power readings"
AND = "; of a GPU without an energy counter, "


def with_counter(folder: Path) -> StoredResult:
    """Return a result of a GPU with an energy counter."""
    folder.mkdir()
    return with_timeline(row("counter"), folder, {(UUID, COUNTER): [at * 30_000.0 for at in range(20)]})


def with_readings(folder: Path) -> StoredResult:
    """Return a result of a GPU without one."""
    folder.mkdir()
    return with_timeline(row("readings", WITHOUT), folder, {(UUID, "power_w"): [300.0] * 20})


@pytest.mark.parametrize(
    ("made", "power", "energy"),
    [
        ([with_counter], COUNTS_W, COUNTS_J),
        # Of results without either, the same is said of joules, and of power that nobody sees nothing.
        ([lambda _: row("none", {"energy.source": None})], None, COUNTS_J),
        ([with_readings], READS_W, READS_J),
        ([with_counter, with_readings], f"{COUNTS_W}{AND}{READS_W}", f"{COUNTS_J}{AND}{READS_J}"),
        ([lambda _: row("both", {"energy.source": "counter+integrated_power"})], None, f"{COUNTS_J}{AND}{READS_J}"),
    ],
)
def test_the_page_says_what_joules_and_drawn_power_were_made_of(
    tmp_path: Path, made: list[Callable[[Path], StoredResult]], power: str | None, energy: str
) -> None:
    """Counters, the driver's readings, or each, in several results or in one over two kinds of GPUs."""
    results = [make(tmp_path / str(number)) for number, make in enumerate(made)]
    text = page(results, title="a title", written=datetime(2026, 1, 1, tzinfo=UTC)).replace("&#39;", "'")
    assert f"Power is {power}. It is thinned" in text if power else "Power is" not in text
    assert f"idle power included: {energy}. J/output" in text
