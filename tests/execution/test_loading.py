"""What a run says of a load that takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from make.virtual_meter import VirtualClock
from seams.execution import SILENCE_S, told_while_silent

if TYPE_CHECKING:
    from pathlib import Path


def test_a_load_of_minutes_tells_what_the_engine_does(tmp_path: Path) -> None:
    """vLLM's first start on a GPU compiled a kernel for two minutes without a stage of its own."""
    log, clock, told = tmp_path / "runner.log", VirtualClock(), list[str]()
    look = told_while_silent(log, clock, told.append)
    look()
    clock.sleep(SILENCE_S)
    # No log yet.
    look()
    log.write_text("loading\nBuilding JIT module sampling; this can take several minutes\n")
    clock.sleep(SILENCE_S / 2)
    look()
    assert told == []
    clock.sleep(SILENCE_S / 2)
    look()
    clock.sleep(SILENCE_S)
    look()
    # Once, for as long as nothing else is written.
    assert told == ["in its log: Building JIT module sampling; this can take several minutes"]
    log.write_text("graphs 0/39\rgraphs 12/39\r" + 500 * "." + "graphs 39/39")
    clock.sleep(SILENCE_S)
    look()
    assert told[1].endswith("...graphs 39/39")
    assert len(told[1]) < 130
