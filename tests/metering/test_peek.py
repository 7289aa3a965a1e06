"""What a meter has read while it goes on, on a clock that moves only when the one who asks waits."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from seams.metering import PEEK_PATIENCE_NS, PEEK_POLL_S, GpuReader, Source

from wattdock.clock import NS_PER_S, Clock
from wattdock.metering import EnergyCurve, Meter

POWER_W, PERIOD_NS, SAMPLE_NS, READ_NS = 100, NS_PER_S // 10, NS_PER_S // 50, NS_PER_S // 1000


class LockStep(Clock):
    """Time that `sleep` of the test's thread moves on; it returns when the meter's only thread waits again."""

    def __init__(self) -> None:
        self._now_ns = 100 * NS_PER_S
        self._changed = threading.Condition()
        self._waits = False

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._now_ns

    def take(self, duration_ns: int) -> None:
        """Let the meter's thread, which runs while the test's waits, take time for a read."""
        self._now_ns += duration_ns

    def sleep(self, duration_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waits, timeout=60)
            self._now_ns += round(duration_s * NS_PER_S)
            self._waits = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waits, timeout=60)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        until_ns = self._now_ns + round(timeout_s * NS_PER_S)
        with self._changed:
            while self._now_ns < until_ns and not event.is_set():
                self._waits = True
                self._changed.notify_all()
                self._changed.wait(60)
        return event.is_set()


@dataclass
class OneGpu(Source):
    """A GPU of 100 W whose counter changes every 100 ms, and whose driver may keep samples of 20 ms."""

    clock: LockStep
    has_samples: bool
    frozen_at_ns: int | None = None
    name: str = "one"
    windows: list[object] = field(default_factory=list)  # type: ignore[assignment]

    def open(self) -> str | None:
        return None

    def count(self) -> int:
        return 1

    def reader(self, index: int, clock: Clock) -> GpuReader:
        return GpuReader(
            uuid="GPU-a",
            counter_mj=self._counter_mj,
            samples=self._samples if self.has_samples else None,
            power=(),
            cheap={},
            slow={},
            processes=lambda _: (),
            errors=(),
            meaning=lambda _: "read_error",
        )

    def _counter_mj(self) -> int:
        self.clock.take(READ_NS)
        now_ns = min(self.clock.now_ns(), self.frozen_at_ns or self.clock.now_ns())
        return now_ns // PERIOD_NS * PERIOD_NS // 1_000_000 * POWER_W

    def _samples(self) -> list[tuple[int, float]]:
        newest = self.clock.now_ns() // SAMPLE_NS
        return [(number * SAMPLE_NS // 1000, float(POWER_W)) for number in range(newest - 100, newest + 1)]


@pytest.mark.parametrize("has_samples", [False, True])
def test_what_tells_the_energy_of_a_span_that_has_just_ended_is_waited_for_and_no_longer_than_that(
    *, has_samples: bool
) -> None:
    """A warm-up's last pass is judged by it; a counter that no longer changes is not waited for without end."""
    clock = LockStep()
    gpu = OneGpu(clock, has_samples)
    meter = Meter(gpu, clock=clock)
    meter.start()
    for _ in range(200):
        clock.sleep(PEEK_POLL_S)
    ended_ns = clock.now_ns()
    seen = meter.peek(ended_ns).gpus["GPU-a"]
    assert seen.ticks.after_start_ns[-1] > ended_ns
    if has_samples:
        assert EnergyCurve(seen).between(ended_ns - NS_PER_S, ended_ns).energy_j == pytest.approx(POWER_W, rel=0.02)
    assert clock.now_ns() - ended_ns < PEEK_PATIENCE_NS / 2
    asked_ns = clock.now_ns()
    meter.peek()
    assert clock.now_ns() == asked_ns
    gpu.frozen_at_ns = asked_ns
    meter.peek(asked_ns)
    assert clock.now_ns() - asked_ns == pytest.approx(PEEK_PATIENCE_NS, abs=2 * PEEK_POLL_S * NS_PER_S)
