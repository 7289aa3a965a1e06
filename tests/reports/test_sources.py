"""What a page says its joules and its drawn power were made of."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from report_rows import row, with_timeline

from wattdock.records.folder import COUNTER
from wattdock.reports.page import page

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.store import StoredResult

UUID = "GPU-00000000-0000-0000-0000-000000000001"
WITHOUT = {"energy.source": "integrated_power", f"gpus.{UUID}.source": "integrated_power"}
COUNTS_J, READS_J = "energy counters, interpolated between their changes", "the driver's power readings, integrated"
COUNTS_W, READS_W = "Power is energy between two changes of a GPU's counter", "the driver's power readings. It is"


def said(*rows: StoredResult) -> tuple[str, str]:
    """Return what a page says of power over time, and of energy."""
    text = page(rows, title="a title", written=datetime(2026, 1, 1, tzinfo=UTC)).replace("&#39;", "'")
    [power] = re.findall(r"Power is .*? Shaded", text)
    [energy] = re.findall(r"<strong>Energy</strong>.*", text)
    return power, energy


def with_counter(folder: Path) -> StoredResult:
    """Return a result of a GPU with an energy counter."""
    folder.mkdir()
    return with_timeline(row("counter"), folder, {(UUID, COUNTER): [at * 30_000.0 for at in range(20)]})


def with_readings(folder: Path) -> StoredResult:
    """Return a result of a GPU without one."""
    folder.mkdir()
    return with_timeline(row("readings", WITHOUT), folder, {(UUID, "power_w"): [300.0] * 20})


def test_joules_of_a_counter_are_said_to_be_its(tmp_path: Path) -> None:
    """And so is drawn power; of results without either, the same is said."""
    for rows in ([with_counter(tmp_path / "one")], [row("none", {"energy.source": None})]):
        power, energy = said(*rows)
        assert COUNTS_W in power
        assert COUNTS_J in energy
        assert "readings" not in power + energy


def test_integrated_power_is_not_said_to_be_a_counters(tmp_path: Path) -> None:
    """The page draws and counts what the driver says, and says so."""
    power, energy = said(with_readings(tmp_path / "one"))
    assert power.startswith(f"Power is {READS_W}")
    assert READS_J in energy
    assert "counter" not in power + energy


def test_of_both_kinds_the_page_says_both(tmp_path: Path) -> None:
    """In results of their own, or in one over two kinds of GPUs."""
    power, energy = said(with_counter(tmp_path / "one"), with_readings(tmp_path / "two"))
    assert COUNTS_W in power
    assert f"; of a GPU without an energy counter, {READS_W}" in power
    assert COUNTS_J in energy
    assert f"; of a GPU without an energy counter, {READS_J}" in energy
    _, energy = said(row("both", {"energy.source": "counter+integrated_power"}))
    assert f"; of a GPU without an energy counter, {READS_J}" in energy
