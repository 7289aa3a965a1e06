from __future__ import annotations

import pytest

from wattdock.errors import MeterError
from wattdock.metering.none import NoMeter


def test_a_run_without_a_meter_has_a_timeline_that_says_why() -> None:
    """Null with a reason, at once and without threads."""
    meter = NoMeter("asked for on the command line")
    with pytest.raises(MeterError, match="before it was started"):
        meter.stop()
    meter.start()
    with meter.window("pass"):
        pass
    timeline = meter.stop()
    assert (timeline.meter, dict(timeline.gpus), timeline.reason) == ("none", {}, "asked for on the command line")
    assert timeline.end_ns >= timeline.start_ns
