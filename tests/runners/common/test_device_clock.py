"""Events of a device, dated by the host's clock; without a device."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from wattdock_runner import device_clock
from wattdock_runner.device_clock import DeviceClock, host_instants


@pytest.mark.parametrize(
    ("elapsed_ms", "closing_ms", "instants"),
    [
        # A device clock that runs 100 ppm fast is corrected: 5.0005 of its seconds are 5 of the host's.
        ([0.0, 5_000.5, 10_001.0], 10_001.0, [1_000, 5_000_001_000, 10_000_001_000]),
        # A clock that stands still says nothing, and costs no pass.
        ([0.0, 0.0], 0.0, [1_000, 1_000]),
    ],
)
def test_device_instants_follow_a_straight_line_between_the_dated_events(
    elapsed_ms: list[float], closing_ms: float, instants: list[int]
) -> None:
    """The base event was at 1,000 ns of the host, the closing event 10 s later."""
    assert host_instants(elapsed_ms, closing_ms, 1_000, 10_000_001_000) == instants


@dataclass
class FakeEvent:
    """A CUDA event, recorded at an instant of the fake host's own clock."""

    host: FakeHost
    at_ns: int = 0

    def record(self, stream: object) -> None:
        """It happens now."""
        self.at_ns = self.host.at_ns

    def synchronize(self) -> None:
        """It is over at once."""

    def elapsed_time(self, later: FakeEvent) -> float:
        """Return milliseconds to a later event."""
        return (later.at_ns - self.at_ns) / 1e6


class FakeHost:
    """A clock that moves 10 us per reading, and by a preemption after the readings that `preempted` numbers (ns)."""

    def __init__(self, preempted: dict[int, int]) -> None:
        self.at_ns = 0
        self.readings = 0
        self.preempted = preempted

    def now_ns(self) -> int:
        """Read the clock."""
        self.at_ns += 10_000
        read_ns = self.at_ns
        self.at_ns += self.preempted.get(self.readings, 0)
        self.readings += 1
        return read_ns


@pytest.mark.parametrize("reading", [0, 2, 10, 12])
def test_a_preemption_of_the_host_at_either_end_does_not_matter(monkeypatch: pytest.MonkeyPatch, reading: int) -> None:
    """Readings 0 to 9 open a pass and 10 to 19 close it; 8 ms fall between two that belong together."""
    host = FakeHost({reading: 8_000_000})
    monkeypatch.setattr(device_clock, "now_ns", host.now_ns)
    cuda = SimpleNamespace(current_stream=lambda _: None, Event=lambda enable_timing: FakeEvent(host))
    clock = DeviceClock(SimpleNamespace(type="cuda"), cuda)
    clock.open()
    host.at_ns += 100_000_000
    mark, marked_ns = clock.mark(), host.at_ns
    host.at_ns += 400_000_000
    [instant_ns] = clock.instants([mark])
    assert instant_ns == pytest.approx(marked_ns, abs=20_000)
