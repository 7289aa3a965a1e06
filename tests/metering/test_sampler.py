"""When one GPU is read, on a clock that moves only by reads and waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wattdock.clock import NS_PER_S, Clock
from wattdock.metering.sampler import GpuSampler
from wattdock.metering.source import GpuReader, PowerRead

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

MS = 1_000_000
START_NS = 1_000 * NS_PER_S


class Bench(Clock):
    """One simulated GPU of 100 W; what was read when, ms since the start, and how long it took."""

    def __init__(self, *, counter_period_ms: float = 100.0, costs_ms: dict[str, float] | None = None) -> None:
        self._now_ns = START_NS
        self._period_ms = counter_period_ms
        self._costs_ms = costs_ms or {}
        self.reads: dict[str, list[tuple[float, float]]] = {}
        # Raise what fails at an instant, ms.
        self.fails: dict[str, Callable[[float], Exception | None]] = {}

    def now_ns(self) -> int:
        return self._now_ns

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self._now_ns += round(timeout_s * NS_PER_S)
        return event.is_set()

    def read(self, what: str, value: float = 100.0) -> float:
        begin_ms = (self._now_ns - START_NS) / MS
        self._now_ns += round(self._costs_ms.get(what, 0.1) * MS)
        self.reads.setdefault(what, []).append((begin_ms, (self._now_ns - START_NS) / MS))
        if what in self.fails and (error := self.fails[what](begin_ms)):
            raise error
        return value

    def counter_mj(self) -> int:
        middle_ms = (self._now_ns - START_NS) / MS + self._costs_ms.get("counter", 0.1) / 2
        return int(self.read("counter", middle_ms // self._period_ms * self._period_ms * 100))

    def sampler(self, *, cheap: tuple[str, ...] = ()) -> GpuSampler:
        return GpuSampler(
            GpuReader(
                uuid="GPU-a",
                counter_mj=self.counter_mj,
                samples=None,
                power=(PowerRead("power_w", "call", lambda: self.read("power")),),
                cheap={name: lambda name=name: self.read(name) for name in cheap},  # type: ignore[misc]
                slow={},
                processes=lambda kind: (),
                errors=(OSError,),
                meaning=lambda error: "read_error",
            ),
            self,
        )

    def run(self, until_s: float, *, cheap: tuple[str, ...] = ()) -> GpuSampler:
        sampler = self.sampler(cheap=cheap)
        sampler.stop_after(START_NS + round(until_s * NS_PER_S))
        sampler.run()
        return sampler

    def begins_ms(self, what: str) -> list[float]:
        return [begin_ms for begin_ms, _ in self.reads[what]]


def from_ms(begin_ms: float, error: Exception) -> Callable[[float], Exception | None]:
    return lambda at_ms: error if at_ms >= begin_ms else None


def test_no_expensive_read_is_under_way_when_the_counter_is_expected_to_change() -> None:
    """One of 14 ms beside a counter that changes every 100 ms, once a second, for a minute."""
    bench = Bench(costs_ms={"counter": 3.0, "hot": 14.0, "clock": 14.0})
    bench.run(60, cheap=("hot", "clock"))
    for name in ("hot", "clock"):
        spans_ms = [span for span in bench.reads[name] if span[0] > 2_000]
        assert len(spans_ms) == pytest.approx(59, abs=2)
        assert all(begin_ms // 100 == end_ms // 100 for begin_ms, end_ms in spans_ms)
    # Spread over the period.
    apart_ms = np.subtract(bench.begins_ms("clock")[2:50], bench.begins_ms("hot")[2:50])
    assert np.median(apart_ms) == pytest.approx(500, abs=120)


def test_a_counter_that_is_always_expected_to_change_holds_an_expensive_read_up_for_a_second() -> None:
    """Then it is read all the same."""
    bench = Bench(counter_period_ms=8.0, costs_ms={"counter": 3.0})
    bench.run(8, cheap=("hot",))
    first_ms, *later_ms = bench.begins_ms("hot")
    assert first_ms < 100
    assert later_ms[0] == pytest.approx(2_000, abs=60)
    assert np.diff(later_ms) == pytest.approx(1_000, abs=60)


def test_a_read_that_fails_is_tried_again_later_and_later_and_at_once_when_it_answers() -> None:
    """A tenth of a second more for each error in a row, a second at most; the counter likewise."""
    bench = Bench(counter_period_ms=1e9)
    bench.fails = {
        name: lambda at_ms: OSError("busy") if 4_990 < at_ms < 25_000 else None for name in ("hot", "counter")
    }
    bench.run(40, cheap=("hot",))
    for name, usual_ms in (("hot", 1_000), ("counter", 20)):
        at_ms = np.array(bench.begins_ms(name))
        failed = np.flatnonzero((at_ms > 4_990) & (at_ms < 25_000))
        # The first error waits 0.1 s, the tenth and later ones a second.
        waits_ms = np.minimum(np.arange(1, len(failed) + 1), 10) * 100 + usual_ms
        assert np.diff(at_ms)[failed] == pytest.approx(waits_ms, abs=25), name
        assert np.diff(at_ms[at_ms > 28_000]) == pytest.approx(usual_ms, abs=25), name


def test_an_error_that_repeats_within_a_minute_is_one_event_that_counts_it() -> None:
    """From the first to the last; one that comes later than that is another event, and so is another error."""
    bench = Bench()
    # Read once a second, at whole seconds and a little.
    seconds = {5: "busy", 6: "busy", 40: "odd", 65: "busy", 127: "busy", 128: "busy"}
    bench.fails["hot"] = lambda at_ms: OSError(seconds[int(at_ms // 1_000)]) if at_ms // 1_000 in seconds else None
    recording = bench.run(135, cheap=("hot",)).recording
    told = [(event.kind, event.message, event.end_ns is not None) for event in recording.events]
    assert told == [
        ("read_error", "hot: busy (3 times, the last 60.4 s after the first)", True),
        ("read_error", "hot: odd", False),
        ("read_error", "hot: busy (2 times, the last 1.1 s after the first)", True),
    ]
    at_ms = [(event.at_ns - START_NS) // MS for event in recording.events]
    assert at_ms == pytest.approx([5_000, 40_300, 127_500], abs=100)


def test_a_gpu_that_answers_with_errors_only_is_lost_after_fifty_in_a_row() -> None:
    """One answer in between begins the count anew, whichever read it was."""
    bench = Bench()
    bench.fails = {name: from_ms(3_000, OSError("busy")) for name in ("hot", "counter", "power")}
    sampler = bench.run(60, cheap=("hot",))
    failed = sum(at_ms >= 3_000 for name in bench.fails for at_ms in bench.begins_ms(name))
    assert failed == 50
    assert sampler.recording.events[-1].message.startswith("50 errors in a row, the last one: busy; this GPU's ")
    assert sampler.latest_power_w is None
    bench = Bench()
    bench.fails = {"power": from_ms(3_000, OSError("busy"))}
    assert {event.kind for event in bench.run(60).recording.events} == {"read_error"}


def test_a_sampler_ends_a_second_and_a_change_after_the_instant_it_was_told() -> None:
    """Five more where no change comes; the share of time inside reads is that of what they took."""
    bench = Bench(costs_ms={"counter": 1.0, "power": 0.0})
    recording = bench.run(10).recording
    assert (recording.end_ns - START_NS) / MS == pytest.approx(11_000, abs=60)
    spent_ms = sum(end_ms - begin_ms for spans in bench.reads.values() for begin_ms, end_ms in spans)
    share = recording.timeline("").busy_fraction
    assert share == pytest.approx(spent_ms * MS / (recording.end_ns - START_NS))
    still = Bench(counter_period_ms=1e9).run(10).recording
    assert (still.end_ns - START_NS) / MS == pytest.approx(16_000, abs=60)
    assert replace(still, start_ns=still.end_ns).timeline("").busy_fraction is None
