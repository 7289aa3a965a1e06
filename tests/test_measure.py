"""The procedure for one experiment, on a client that answers as a runner would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from merge_samples import measured, request

from wattdock.clock import ClockCheck
from wattdock.config.experiment import ExperimentConfig
from wattdock.errors import RunnerError
from wattdock.interrupts import Interrupts
from wattdock.measure import Collected, Session, measure
from wattdock.meter.none import NoMeter
from wattdock.models.folder import ModelFolder
from wattdock.models.shapes import shape_config
from wattdock.progress import Silent

if TYPE_CHECKING:
    from wattdock.records import GeneratedPass

MODEL = ModelFolder(Path(), "shape", "tiny", "config-sha256:1", False, True, 1, config=shape_config("tiny-llama"))


@dataclass
class DyingClient:
    """A runner that serves every pass and dies after so many checks of its clock."""

    checks_left: int

    def generate(self, *_: object, **__: object) -> GeneratedPass:
        return measured(0, 1, 2, (request(0, 1, 1.5, 2, 3),)).generated

    def check_clock(self) -> ClockCheck:
        if not self.checks_left:
            raise RunnerError("the runner died")
        self.checks_left -= 1
        return ClockCheck("boot", 1)


def test_a_pass_whose_runner_died_before_its_clock_was_checked_is_kept_as_unchecked() -> None:
    """It costs no pass, ends the restart, and is durable with the mark."""
    kept: list[list[bool]] = []
    meter = NoMeter("test")
    session = Session(
        client=cast("Any", DyingClient(checks_left=1)),
        model=MODEL,
        meter=meter,
        progress=Silent(),
        metered=False,
        gpu_uuids=(),
        interrupts=Interrupts(),
        check=lambda: None,
        keep=lambda collected: kept.append([one.clock_checked for one in collected.passes]),
        pids=frozenset,
    )
    config = ExperimentConfig.model_validate({"warmup": {"passes": 0}, "repeats": {"passes": 3}})
    with pytest.raises(RunnerError, match="the runner died"):
        measure(session, Collected(config, 0))
    assert kept == [[True], [True, False]]
