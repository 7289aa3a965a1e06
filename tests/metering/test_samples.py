"""The driver's power samples on a clock that the test moves: which buffers fit, and at which instants samples were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from seams.metering import DriverSamples

from wattdock.clock import NS_PER_S, Clock

if TYPE_CHECKING:
    import threading

MS = 1_000_000
START_NS, OFFSET_NS = 1_000 * NS_PER_S, 5_000_000 * NS_PER_S


class Wall(Clock):
    """Both clocks stand still, apart from what each reading takes; the time of day can be set."""

    def __init__(self) -> None:
        self.monotonic_ns, self.offset_ns = START_NS, OFFSET_NS
        self.delays_ns: list[int] = []

    def now_ns(self) -> int:
        return self.monotonic_ns

    def wall_ns(self) -> int:
        now_ns = self.monotonic_ns
        # Held up behind the reading.
        self.monotonic_ns += self.delays_ns.pop(0) if self.delays_ns else 0
        return now_ns + self.offset_ns

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        raise NotImplementedError


def stamps(*before_ms: float) -> list[tuple[int, float]]:
    """Return samples so long before the start, stamped with the time of day, microseconds."""
    return [(round((START_NS + OFFSET_NS - ms * MS) / 1e3), 100.0) for ms in before_ms]


@pytest.mark.parametrize(
    ("before_ms", "doubt"),
    [
        ((80, 60, 40, 20, 0), None),
        ((60, 40, 20, 0), "the buffer holds 4"),
        ((1080, 1060, 1040, 1020, 1000), None),
        ((1081, 1061, 1041, 1021, 1001), "the newest is stamped 1.0 s before now"),
        ((-921, -941, -961, -981, -1001), "the newest is stamped -1.0 s before now"),
        ((200, 150, 100, 50, 0), None),
        ((204, 153, 102, 51, 0), "they are 51 ms apart"),
        # One gap is no distance.
        ((900, 60, 40, 20, 0), None),
    ],
)
def test_a_buffer_is_used_from_five_samples_on_a_second_old_and_fifty_milliseconds_apart(
    before_ms: tuple[float, ...], doubt: str | None
) -> None:
    """One with less says too little about the course of power, one older is not stamped with the time of day."""
    samples = DriverSamples(lambda: stamps(*before_ms), Wall())
    assert samples.doubt
    assert samples.read() == []
    assert samples.doubt == doubt


@pytest.mark.parametrize(("step_ms", "count"), [(5, 1), (-5, 1), (6, 0), (-6, 0)])
def test_samples_read_with_a_step_of_the_time_of_day_are_left_out(step_ms: int, count: int) -> None:
    """Up to five milliseconds are what adjusting a clock does."""
    clock, buffer = Wall(), stamps(80, 60, 40, 20, 0)
    samples = DriverSamples(lambda: buffer, clock)
    samples.read()
    buffer += stamps(-20)
    clock.offset_ns += step_ms * MS
    clock.monotonic_ns += 40 * MS
    assert len(samples.read()) == count
    assert samples.read() == []


def test_of_three_readings_of_both_clocks_the_quickest_counts() -> None:
    """A thread held up between them would move every sample by half of that."""
    clock, new = Wall(), stamps(-30, -50)
    samples = DriverSamples(lambda: new, clock)
    clock.delays_ns = [400 * MS, 100 * MS, 0]
    assert samples.read() == [(START_NS + 30 * MS, 100.0), (START_NS + 50 * MS, 100.0)]
    clock.delays_ns = [40 * MS, 0, 100 * MS]
    assert samples.read() == []


def test_a_sample_is_returned_once_and_only_after_the_start_and_before_now() -> None:
    """One at an instant already returned, or not yet reached, is left out."""
    clock = Wall()
    buffer = stamps(20, 0, -20)
    samples = DriverSamples(lambda: buffer, clock)
    clock.monotonic_ns += 20 * MS
    assert samples.read() == [(START_NS + 20 * MS, 100.0)]
    buffer += [(buffer[-1][0], 300.0), *stamps(-40, -500)]
    clock.monotonic_ns += 20 * MS
    assert samples.read() == [(START_NS + 40 * MS, 100.0)]
    assert samples.latest_ns == START_NS + 40 * MS
