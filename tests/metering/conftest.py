from __future__ import annotations

from typing import TYPE_CHECKING

import fake_nvml
import pytest
from metering.fresh_zeus import fresh_zeus
from seams.metering import NvmlSource, ZeusSource

from wattdock.metering import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fake_nvml import FakeGpu

    from wattdock.metering import Timeline


@pytest.fixture(params=[NvmlSource, ZeusSource], ids=["nvml", "zeus"])
def metered(request: pytest.FixtureRequest, library: Path) -> Callable[[Sequence[FakeGpu], float], Timeline]:
    """Let one of the real meters watch simulated GPUs in virtual time, for so many seconds."""

    def watch(gpus: Sequence[FakeGpu], until_s: float) -> Timeline:
        with fake_nvml.loaded(library, gpus=gpus) as fake, fresh_zeus():
            meter = Meter(request.param(), clock=fake)
            meter.start()
            timeline: Timeline = meter.stop(fake_nvml.VIRTUAL_ORIGIN_NS + int(until_s * 1e9))
            return timeline

    return watch
