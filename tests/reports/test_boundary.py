"""A counter that covers the module of a superchip is named in the result, and wherever its joules are shown."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_nvml import GRACE_HOPPER
from make import audit_world
from make.audit_world import OTHER, USED, World, result_of
from make.rows import row
from seams.console import terminal_rows
from seams.reports import markdown, page

from wattdock.analysis import ExperimentResult, conditions
from wattdock.reports import points_of, pools
from wattdock.reports.charts import CHARTS
from wattdock.store import StoredResult

if TYPE_CHECKING:
    from wattdock.records import RestartRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def gh200(library: Path) -> StoredResult:
    """Of two restarts on a GH200, as the real meter saw it: 500 W of the GPU and 150 W of CPU and memory."""
    result = result_of(World(gpu=GRACE_HOPPER, restarts=2), library)
    return StoredResult(Path("gh200"), result)


def test_the_joules_are_the_modules_and_the_boundary_is_named(gh200: StoredResult) -> None:
    """90 s of 650 W, twice; the two readings agree, as both are of the module."""
    result = gh200.result
    assert result.energy is not None
    assert (result.energy.energy_boundary, result.energy.reason) == ("module", None)
    assert result.energy.boundary_statement.startswith("Modules of GPU and CPU")
    assert result.energy.total_j == pytest.approx(2 * 90 * (500 + 150), rel=0.002)
    assert result.energy.net_j == pytest.approx(2 * 90 * (500 - 118), rel=0.01)
    assert result.gpus[USED].power_over_counter == pytest.approx(0, abs=0.01)
    assert result.audit is not None
    assert {check.status for check in result.audit.checks if "readings" in check.name} == {"pass"}
    assert ExperimentResult.model_validate_json(result.model_dump_json(by_alias=True)).energy == result.energy


def test_page_terminal_table_and_charts_say_modules_and_nowhere_gpu_boards(gh200: StoredResult) -> None:
    """Scripts are left out: they hold data of charts, which are looked at by themselves."""
    text = re.sub(r"<script>.*?</script>", "", page([gh200], title="x", written=NOW), flags=re.DOTALL)
    assert "Joules are of GPU and CPU modules." in text
    assert "</strong> Modules of GPU and CPU as their own sensors see them" in text
    shown = terminal_rows(gh200)
    assert ", module)" in shown["as measured"]
    table = markdown(points_of([gh200]))
    assert "Energy of GPU and CPU modules." in table
    charts = [str(CHARTS[kind].draw(points_of([gh200])).to_dict(validate=False)) for kind in ("pareto", "intervals")]
    assert all("(GPU and CPU modules)" in drawn for drawn in charts)
    assert not re.search("gpu.boards", " ".join([text, str(shown), table, *charts]), re.IGNORECASE)


def test_joules_of_modules_and_of_boards_are_told_apart_and_never_pooled(gh200: StoredResult) -> None:
    """The same result as if its counter had covered the board."""
    energy = gh200.result.energy
    assert energy is not None
    board = gh200.result.model_copy(update={"energy": energy.model_copy(update={"energy_boundary": "gpu_boards"})})
    both = [gh200, StoredResult(Path("board"), board)]
    assert "Joules are of GPU and CPU modules and GPU boards." in page(both, title="x", written=NOW)
    assert conditions.differing([stored.result.conditions for stored in both]) == ["energy boundary"]
    assert gh200.result.environment is not None
    elsewhere = gh200.result.environment.model_copy(update={"gpu_uuids": [OTHER]})
    others = [
        StoredResult(Path("other"), stored.result.model_copy(update={"environment": elsewhere})) for stored in both
    ]
    assert [len(pools([gh200, other])) for other in others] == [1, 0]


def test_restarts_whose_counters_cover_different_parts_have_no_sum(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a driver's update between two restarts."""
    sound = audit_world._restart

    def changed(*args: object) -> RestartRecord:
        record = sound(*args)  # type: ignore[arg-type]
        assert record.timeline is not None
        if record.restart:
            return record
        gpus = {uuid: replace(gpu, boundary="module") for uuid, gpu in record.timeline.gpus.items()}
        return replace(record, timeline=replace(record.timeline, gpus=gpus))

    monkeypatch.setattr(audit_world, "_restart", changed)
    energy = result_of(World(restarts=2), library).energy
    assert energy is not None
    assert (energy.total_j, energy.measured_per_output_token_j) == (None, None)
    assert energy.reason == "energy counters cover the GPU board in one case and the module in another"


def test_a_result_without_joules_says_nothing_of_modules() -> None:
    """What the page says then is what it always said."""
    unknown = row("one", {"energy.total_j": None, "energy.energy_boundary": "module", "energy.reason": "GPU lost"})
    assert "Joules are of GPU boards." in page([unknown], title="x", written=NOW)
