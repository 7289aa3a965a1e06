"""What a GPU's readings say against themselves, and at which instant: just within each limit, and just beyond it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from seams.metering import Series, Ticks, timeline_events

from wattdock.clock import NS_PER_S
from wattdock.metering import MeterEvent

MS = 1_000_000
END_S = 20.0


def ticks(at_s: list[float], *, power_w: float = 100.0, reset_at_s: float = np.inf) -> Ticks:
    """A counter that shows what 100 W have used, since a reset; each change is read within 2 ms."""
    at_ns = np.round(np.array(at_s) * NS_PER_S).astype(np.int64)
    since_s = np.where(np.array(at_s) < reset_at_s, at_s, np.array(at_s) - reset_at_s)
    energy_mj = np.round(since_s * power_w * 1e3).astype(np.int64)
    return Ticks(at_ns - 2 * MS, at_ns - MS, at_ns, at_ns + MS, energy_mj)


def every(period_s: float, *, start_s: float = 0.0, end_s: float = END_S) -> list[float]:
    return np.arange(start_s, end_s, period_s).tolist()


def power(watts: float, *, name: str = "power_w", at_s: list[float] | None = None) -> dict[str, Series]:
    at_ns = np.round(np.array(every(0.05) if at_s is None else at_s) * NS_PER_S).astype(np.int64)
    return {name: Series(at_ns, np.full(len(at_ns), watts))}


def events(read: Ticks, series: dict[str, Series]) -> list[tuple[str, float, float | None]]:
    """Return kind, begin and end, s, of the events of readings that last for 20 s."""
    last_mj = int(read.energy_mj[-1]) if len(read.energy_mj) else 0
    found = timeline_events(read, series, start_ns=0, end_ns=round(END_S * NS_PER_S), end_mj=last_mj)
    return [(event.kind, event.at_ns / NS_PER_S, event.end_ns and event.end_ns / NS_PER_S) for event in found]


STEADY = every(0.1)
SAMPLES = "power_sample_w"


def sampled(first_s: float, second_s: float, *, end_s: float = END_S) -> dict[str, Series]:
    """Return samples from an instant to 5 s, and from another to an end."""
    return power(
        100,
        name=SAMPLES,
        at_s=[*every(0.05, start_s=first_s, end_s=4.99), 5.0, *every(0.05, start_s=second_s, end_s=end_s)],
    )


@pytest.mark.parametrize(
    ("read", "series", "expected"),
    [
        (ticks(STEADY), {}, []),
        (ticks([*every(0.1, end_s=5), *every(0.1, start_s=5.06)]), {}, []),
        (ticks([*every(0.1, end_s=5), *every(0.1, start_s=5.08)]), {}, [("gap", 5.08, None)]),
        # Two changes do not tell what is usual.
        (ticks([1.0, 19.0]), {}, []),
        # Where the driver keeps samples, only some changes are looked for, and a gap is one of samples.
        (ticks(every(1.0)), power(100, name=SAMPLES), []),
        (ticks(every(1.0)), sampled(0.1, 5.1), []),
        (ticks(every(1.0)), sampled(0.102, 5.102), [("sample_gap", 0.0, 0.102), ("sample_gap", 5.0, 5.102)]),
        (ticks(every(1.0)), sampled(0.1, 7.0), [("sample_gap", 5.0, 7.0)]),
        (ticks(every(1.0)), sampled(0.1, 7.002), [("samples_ceased", 5.0, 7.002)]),
        # The newest ones may not have been asked for yet.
        (ticks(every(1.0)), sampled(0.1, 5.1, end_s=18.07), []),
        (ticks(every(1.0)), sampled(0.1, 5.1, end_s=17.96), [("samples_ceased", 17.95, 20.0)]),
        (ticks(STEADY, reset_at_s=7.95), {}, [("counter_reset", 8.0, None)]),
    ],
    ids=[
        *("steady", "1.6 periods", "1.8 periods", "two changes", "few changes", "0.1 s", "more than 0.1 s", "2 s"),
        *("more than 2 s", "the last 2 s", "more than the last 2 s", "reset"),
    ],
)
def test_a_gap_and_a_reset_stand_at_the_reading_that_showed_them(
    read: Ticks, series: dict[str, Series], expected: list[tuple[str, float, float | None]]
) -> None:
    """A span is judged by whether one of these lies inside it."""
    assert events(read, series) == expected


@pytest.mark.parametrize(
    ("read", "watts", "expected"),
    [
        # From a value's first reading until the next value was read.
        (ticks([*every(0.1, end_s=5), *every(0.1, start_s=10.0)], power_w=0), 100.0, ("counter_frozen", 4.901, 10.001)),
        (ticks([*every(0.1, end_s=5), *every(0.1, start_s=9.8)], power_w=0), 100.0, None),
        (ticks(every(0.1, end_s=12.0)), 100.0, ("counter_frozen", 11.901, 20.0)),
        (ticks(every(0.1, start_s=8.0)), 100.0, ("counter_frozen", 0.0, 8.001)),
        (ticks([]), 100.0, ("counter_frozen", 0.0, 20.0)),
        # So little that the GPU may be off.
        (ticks([]), 1.0, None),
        (ticks([]), 1.01, ("counter_frozen", 0.0, 20.0)),
        # It was not read for long, and went on meanwhile: at least by half of what power tells.
        (ticks([*every(0.1, end_s=5), *every(0.1, start_s=10.0)], power_w=51), 100.0, None),
        (
            ticks([*every(0.1, end_s=5), *every(0.1, start_s=10.0)], power_w=48),
            100.0,
            ("counter_frozen", 4.901, 10.001),
        ),
    ],
    ids=["5 s", "less", "at the end", "at the begin", "always", "1 W", "more than 1 W", "half", "less than half"],
)
def test_a_counter_is_frozen_from_the_first_reading_of_a_value_to_that_of_the_next_while_the_gpu_draws_power(
    read: Ticks, watts: float, expected: tuple[str, float, float] | None
) -> None:
    """Five seconds, and only where power says that something was used."""
    frozen = [event for event in events(read, power(watts)) if event[0] == "counter_frozen"]
    assert frozen == ([expected] if expected else [])
    assert [event for event in events(read, {}) if event[0] == "counter_frozen"] == []


def test_a_call_that_answers_late_is_no_standstill() -> None:
    """Whoever reads may be stopped in the middle of a call: the value may be as new as its answer."""
    read = ticks([*every(0.1, end_s=5), *every(0.1, start_s=14.9)])
    late = np.where(read.after_start_ns == 14_900_000_000, 4_902_000_000, read.after_start_ns)
    assert [kind for kind, *_ in events(replace(read, after_start_ns=late), power(100.0))] == ["gap"]


def test_what_a_gpu_draws_beside_a_standstill_does_not_make_it_one() -> None:
    """It was off until its counter went on."""
    read = ticks([*every(0.1, end_s=5), *every(0.1, start_s=12.0)], power_w=0)
    series = power(300.0)["power_w"]
    off = np.where((series.at_ns > 4.85e9) & (series.at_ns < 12e9), 0.5, series.value)
    assert events(read, {"power_w": Series(series.at_ns, off)}) == [("gap", 12.0, None)]


def test_events_come_by_time_and_say_how_much() -> None:
    """A reset is found before a gap that was earlier."""
    read = ticks([*every(0.1, end_s=5), *every(0.1, start_s=5.2)], reset_at_s=7.95)
    found = timeline_events(read, {}, start_ns=0, end_ns=0, end_mj=0)
    approximate = tuple(
        replace(event, values={name: round(value, 6) for name, value in event.values.items()}) for event in found
    )
    assert approximate == (
        MeterEvent(round(5.2 * NS_PER_S), "gap", values={"interval_s": 0.3, "usual_s": 0.1}),
        MeterEvent(8 * NS_PER_S, "counter_reset", values={"before_mj": 790_000, "after_mj": 5_000}),
    )
