"""When one GPU is read, on a clock that moves only by reads and waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from seams.metering import POWER_SAMPLES, SAMPLES, GpuReader, GpuSampler, PowerRead

from wattdock.clock import NS_PER_S, Clock
from wattdock.metering import EnergyCurve

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

MS = 1_000_000
START_NS = 1_000 * NS_PER_S


class Bench(Clock):
    """One simulated GPU of 100 W; what was read when, ms since the start, and how long it took."""

    def __init__(
        self,
        *,
        counter_period_ms: float = 100.0,
        costs_ms: dict[str, float] | None = None,
        sample_ms: int | None = None,
        samples_end_ms: int = 10**9,
    ) -> None:
        self._now_ns = START_NS
        self._period_ms = counter_period_ms
        self._costs_ms = costs_ms or {}
        self._sample_ms = sample_ms
        self._samples_end_ms = samples_end_ms
        self.reads: dict[str, list[tuple[float, float]]] = {}
        # Raise what fails at an instant, ms.
        self.fails: dict[str, Callable[[float], Exception | None]] = {}

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
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

    def samples(self) -> list[tuple[int, float]]:
        """Return the driver's samples of the last two seconds, or of the last two that there were."""
        assert self._sample_ms is not None
        end_ms = min(self._now_ns // MS, START_NS // MS + self._samples_end_ms)
        self.read("samples")
        first_ms = (end_ms - 2_000) // self._sample_ms * self._sample_ms
        return [(at_ms * 1_000, 100.0) for at_ms in range(first_ms, end_ms + 1, self._sample_ms)]

    def sampler(self, *, cheap: tuple[str, ...] = (), is_used: bool = True) -> GpuSampler:
        return GpuSampler(
            GpuReader(
                uuid="GPU-a",
                counter_mj=self.counter_mj,
                samples=self.samples if self._sample_ms else None,
                power=(PowerRead("power_w", "call", lambda: self.read("power")),),
                cheap={name: lambda name=name: self.read(name) for name in cheap},  # type: ignore[misc]
                slow={"violation": lambda: self.read("violation")},
                processes=lambda kind: (),
                errors=(OSError,),
                meaning=lambda error: "read_error",
            ),
            self,
            is_used=is_used,
        )

    def run(self, until_s: float, *, cheap: tuple[str, ...] = (), is_used: bool = True) -> GpuSampler:
        sampler = self.sampler(cheap=cheap, is_used=is_used)
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


def test_an_error_that_repeats_within_a_minute_is_one_event() -> None:
    """From the first to the last; one that comes later than that is another event, and so is another error."""
    bench = Bench()
    # Read once a second, at whole seconds and a little.
    seconds = {5: "busy", 6: "busy", 40: "odd", 65: "busy", 127: "busy", 128: "busy"}
    bench.fails["hot"] = lambda at_ms: OSError(seconds[int(at_ms // 1_000)]) if at_ms // 1_000 in seconds else None
    recording = bench.run(135, cheap=("hot",)).recording
    told = [(event.kind, event.reading, event.said, event.end_ns is not None) for event in recording.events]
    assert told == [
        ("read_error", "hot", "busy", True),
        ("read_error", "hot", "odd", False),
        ("read_error", "hot", "busy", True),
    ]
    at_ms = [(event.at_ns - START_NS) // MS for event in recording.events]
    assert at_ms == pytest.approx([5_000, 40_300, 127_500], abs=100)


def test_a_gpu_that_answers_with_errors_only_is_lost_after_fifty_in_a_row() -> None:
    """One answer in between begins the count anew, whichever read it was."""
    bench = Bench()
    bench.fails = {name: from_ms(3_000, OSError("busy")) for name in ("hot", "counter", "power", "violation")}
    sampler = bench.run(60, cheap=("hot",))
    failed = sum(at_ms >= 3_000 for name in bench.fails for at_ms in bench.begins_ms(name))
    assert failed == 50
    assert [event.kind for event in sampler.recording.events][-1] == "gpu_lost"
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


@pytest.mark.parametrize("before_ms", [3, 9, 15, 21])
def test_a_span_that_ends_just_before_a_change_has_energy(before_ms: int) -> None:
    """A change shows what was true some milliseconds before; the next that is looked for comes a second later."""
    bench, end_ms = Bench(sample_ms=20), 10_900 - before_ms
    timeline = bench.run(end_ms / 1_000).recording.timeline("")
    energy = EnergyCurve(timeline).between(START_NS + (end_ms - 1_000) * MS, START_NS + end_ms * MS)
    assert energy.energy_j == pytest.approx(100, rel=0.02), energy.reason


@pytest.mark.parametrize(("change_ms", "sample_ms", "passed"), [(31, 31, True), (30, 31, False), (31, 30, False)])
def test_an_instant_has_passed_when_the_last_change_and_the_last_sample_are_later_by_more_than_they_trail(
    change_ms: int, sample_ms: int, *, passed: bool
) -> None:
    """By 30 ms; a change is as late as the read before it."""
    sampler = Bench().sampler()
    sampler.recording.counter_ns = (0, 0)
    sampler.recording.ticks = [(-70 * MS, -60 * MS, 0, 0, 1), (change_ms * MS, 99 * MS, 100 * MS, 110 * MS, 2)]
    sampler.recording.series[SAMPLES] = [(11 * MS, 100.0), (sample_ms * MS, 100.0)]
    assert sampler.has_passed(0) == passed


@pytest.mark.parametrize(("is_used", "samples_ms", "cheap_ms"), [(True, 500, 100), (False, 1_000, 1_000)])
def test_what_the_driver_samples_is_read_twice_a_second_or_once_where_nobody_uses_the_gpu(
    samples_ms: int, cheap_ms: int, *, is_used: bool
) -> None:
    """Figures that take long are then read every 4 s, and power is not polled."""
    bench = Bench(sample_ms=20)
    bench.run(20, cheap=("hot",), is_used=is_used)
    for name, apart_ms in (("samples", samples_ms), ("hot", cheap_ms), ("violation", 4_000)):
        assert np.median(np.diff(bench.begins_ms(name))) == pytest.approx(apart_ms, abs=20), name
    assert "power" not in bench.reads


def test_samples_that_end_are_missed_after_a_second_and_those_that_do_not_fit_are_not_kept() -> None:
    """From then on power is polled."""
    bench = Bench(sample_ms=20, samples_end_ms=10_000)
    bench.run(20)
    assert bench.begins_ms("power")[0] == pytest.approx(11_000, abs=510)
    rare = Bench(sample_ms=60)
    recording = rare.run(5).recording
    assert sorted(recording.series) == ["power_w", "violation"]
    assert [(event.reading, event.said) for event in recording.events] == [(POWER_SAMPLES, "they are 60 ms apart")]


def test_an_edge_brings_forward_what_is_read_seldom_and_no_other_read() -> None:
    """Samples, the process list and what takes long, at once."""
    bench = Bench(sample_ms=20)
    sampler = bench.sampler(cheap=("hot",))
    note = iter([sampler.note_edge])
    bench.fails["samples"] = lambda at_ms: next(note, lambda: None)() if at_ms > 5_900 else None
    sampler.stop_after(START_NS + 9 * NS_PER_S)
    sampler.run()
    assert bench.begins_ms("violation") == pytest.approx([0, 4_000, 6_000], abs=60)
    listed_ms = [(listing.at_ns - START_NS) / MS for listing in sampler.recording.processes]
    assert listed_ms == pytest.approx([0, 6_000, sampler.recording.end_ns / MS - START_NS / MS], abs=60)
    assert sum(5_950 < at_ms < 6_950 for at_ms in bench.begins_ms("hot")) == 10
    assert sampler.latest_power_w == 100
