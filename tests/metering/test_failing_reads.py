"""What a counter or power samples that fail for a while, or for good, cost a GPU's timeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu
from metering.recordings import NO_SAMPLES, ORIGIN_NS, S, energy_of, kinds, known, only, recorded
from seams.metering import ENERGY_COUNTER, POWER_SAMPLES, GpuSampler, NvmlSource, nvml_reader

from wattdock.host import nvml
from wattdock.metering import EnergyCurve, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wattdock.metering import Timeline

    Metered = Callable[[Sequence[FakeGpu], float], Timeline]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"reset_at_s": 6.0}, "counter_reset"),
        ({"frozen_at_s": 6.0}, "counter_frozen"),
        ({"lost_at_s": 6.0}, "gpu_lost"),
        ({"failing_from_s": 6.0}, "gpu_lost"),
    ],
)
def test_a_counter_that_fails_is_an_event_and_gives_no_energy(
    metered: Metered, fault: dict[str, Any], kind: str
) -> None:
    """Neither negative energy nor silence; what was read before stays, and other GPUs go on."""
    faulty, well = metered([FakeGpu(**fault), FakeGpu(uuid=fake_nvml.uuid_of(2))], 20).gpus.values()
    [event] = (event for event in faulty.events if event.kind == kind)
    assert (event.end_ns is not None) == (kind == "counter_frozen")
    energy_j, timing_j, reason = energy_of(faulty, 3, 10)
    assert (energy_j, timing_j) == (None, None)
    assert ("was reset" in str(reason)) if kind == "counter_reset" else (reason == event.message)
    assert energy_of(faulty, 2, 4)[0] == pytest.approx(160, rel=0.02)
    assert well.events == ()
    assert energy_of(well, 3, 10)[0] == pytest.approx(560, rel=0.01)
    if kind == "counter_reset":
        assert energy_of(faulty, 7, 11)[0] == pytest.approx(320, rel=0.01)


@pytest.mark.parametrize("unsupported", ["", NO_SAMPLES])
def test_a_counter_that_stands_still_within_a_span_and_goes_on_gives_it_no_energy(
    metered: Metered, unsupported: str
) -> None:
    """The joules of the standstill never show: a loss, with the driver's samples as without, in or at an end of it."""
    gpu = only(metered([FakeGpu(frozen_at_s=12.0, thaws_at_s=20.0, unsupported=unsupported)], 34))
    [event] = gpu.losses
    for start_s, end_s in ((5, 30), (5, 15), (15, 30), (14, 18)):
        got = EnergyCurve(gpu).between(ORIGIN_NS + start_s * S, ORIGIN_NS + end_s * S)
        assert (got.energy_j, got.reason, got.lost) == (None, event.message, True)
    assert known(gpu, (4, 10), (23, 32)) == [True, True]


def test_a_counter_that_freezes_just_before_the_end_is_called_frozen(metered: Metered) -> None:
    """The meter waits until it can tell, and only then."""
    timeline = metered([FakeGpu(frozen_at_s=9.9)], 10)
    assert kinds(only(timeline)) == {"counter_frozen"}
    assert timeline.end_ns < ORIGIN_NS + 17 * S
    assert metered([FakeGpu()], 10).end_ns < ORIGIN_NS + 12 * S


def test_a_counter_that_nobody_read_for_a_while_is_not_called_frozen(library: Path) -> None:
    """A thread held up for 7 s, looked at before it has seen the next change: the value read says that it went on."""
    with fake_nvml.loaded(library, gpus=[FakeGpu()]) as fake:
        NvmlSource().open()
        reader, found = nvml_reader(nvml.device(0), fake), list[set[str]]()
        pauses_s = iter([0.0] * 30 + [7.0])

        def temperature_c() -> float:
            fake.sleep(next(pauses_s, 0.0))
            return 40.0

        def counter_mj() -> int:
            found.append(kinds(sampler.recording.timeline("")))
            return reader.counter_mj()

        sampler = GpuSampler(replace(reader, counter_mj=counter_mj, cheap={"temperature_c": temperature_c}), fake)
        sampler.stop_after(ORIGIN_NS + 14 * S)
        sampler.run()
    assert next(pauses_s, None) is None
    assert "counter_frozen" not in set().union(*found)


@pytest.mark.parametrize(
    "fault",
    [
        {"counter_offset_mj": 1.8e19},
        {"failing_from_s": 0.0, "failing": "energy"},
        {"failing_from_s": 0.0, "failing": "energy temperature"},
    ],
)
def test_a_counter_that_has_never_answered_is_not_frozen_and_gives_no_energy(
    metered: Metered, fault: dict[str, Any]
) -> None:
    """It only errors, or shows more than any GPU can have used: told."""
    gpu = only(metered([FakeGpu(**fault)], 20))
    assert (gpu.energy_source, known(gpu, (3, 18))) == (None, [False])
    assert [event.kind for event in gpu.events if event.reading == ENERGY_COUNTER] == ["counter_error"]


def test_where_a_counter_no_longer_answers_the_error_is_the_reason(metered: Metered) -> None:
    """Spans before it have the counter's energy."""
    gpu = only(metered([FakeGpu(failing_from_s=10.0, failing="energy")], 30))
    assert known(gpu, (2, 7), (8, 12), (12, 28)) == [True, False, False]
    [event] = (event for event in gpu.events if event.reading == ENERGY_COUNTER)
    assert (event.kind, event.end_ns is not None) == ("counter_error", True)
    assert energy_of(gpu, 12, 28) == (None, None, event.message)


def test_dropped_changes_are_gaps_and_cost_no_energy(metered: Metered) -> None:
    """The counter is cumulative: what one change did not bring the next one does."""
    gpu = only(metered([FakeGpu(drop_probability=0.1, unsupported=NO_SAMPLES)], 30))
    assert "gap" in kinds(gpu)
    energy_j, timing_j, _ = energy_of(gpu, 5, 25)
    assert timing_j is not None
    assert energy_j == pytest.approx(1600, abs=4 * timing_j)


def test_errors_that_pass_are_recorded_and_the_meter_goes_on(metered: Metered) -> None:
    """A driver hiccup costs a reading, not the measurement."""
    gpu = only(metered([FakeGpu(transient_error_every=97)], 20))
    assert "read_error" in kinds(gpu)
    assert energy_of(gpu, 5, 18)[0] == pytest.approx(13 * 80, rel=0.01)


def test_a_dead_counter_is_told_once_and_costs_the_other_reads_nothing(metered: Metered) -> None:
    """Power that is read well must neither hide its errors nor suffer from them."""
    gpu = only(metered([FakeGpu(failing_from_s=4.0, failing="energy", unsupported=NO_SAMPLES)], 60))
    (error,) = (event for event in gpu.events if event.kind == "counter_error")
    assert error.at_ns == pytest.approx(ORIGIN_NS + 4 * S, abs=0.2 * S)
    assert (error.reading, error.said) == (ENERGY_COUNTER, "Unknown Error")
    assert error.end_ns == pytest.approx(ORIGIN_NS + 65 * S, abs=2 * S)
    assert np.median(np.diff(gpu.series["power_w"].at_ns)) / S == pytest.approx(0.05, abs=0.005)
    assert gpu.series["power_w"].at_ns[-1] > ORIGIN_NS + 60 * S


def test_a_counter_that_answers_again_is_used_again(metered: Metered) -> None:
    """However long it failed: the spans after it have its energy again."""
    fails: dict[str, Any] = {"failing_from_s": 10.0, "failing_until_s": 30.0, "failing": "energy"}
    sampled, counted = metered(
        [FakeGpu(**fails), FakeGpu(uuid=fake_nvml.uuid_of(2), unsupported=NO_SAMPLES, **fails)], 50
    ).gpus.values()
    assert kinds(sampled) == {"counter_error"}
    assert {"counter_error", "gap"} <= kinds(counted)
    for gpu in (sampled, counted):
        assert known(gpu, (2, 7), (12, 28), (33, 45)) == [True, False, True]


def test_what_passes_unseen_comes_from_the_samples(metered: Metered) -> None:
    """A counter whose changes are dropped, gaps in the samples, a GPU that nobody uses: joules stay right."""
    profile = (fake_nvml.square(100.0, 600.0, 0.7, 0.4),)
    for fake in (
        FakeGpu(profile=profile, drop_probability=0.1),
        FakeGpu(profile=profile, sample_drop_probability=0.05),
        FakeGpu(profile=profile, sample_gap_from_s=8.0, sample_gap_until_s=8.4),
    ):
        gpu = only(metered([fake], 30))
        assert gpu.power_courses == ("driver_samples",)
        assert ("sample_gap" in kinds(gpu)) == (fake.sample_gap_from_s == 8)
        energy_j, timing_j, _ = energy_of(gpu, 5.6, 25.2)
        assert timing_j is not None
        assert energy_j == pytest.approx(28 * 0.7 * 300, abs=4 * timing_j)
        assert timing_j < 12


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 0.05, -0.05, -0.3, -1.0, -2.0])
def test_a_time_of_day_that_is_set_moves_no_sample(library: Path, step_s: float) -> None:
    """Samples are stamped with it; those read together with the step are left out."""
    profile = (fake_nvml.square(100.0, 600.0, 0.5, 0.5),)
    gpu = only(recorded(library, [FakeGpu(profile=profile)], 10, wall_step=(5.3, step_s)))
    assert "sample_gap" in kinds(gpu)
    assert gpu.power_samples is not None
    intervals_s = np.sort(np.diff(gpu.power_samples.at_ns) / S)
    assert intervals_s[:-1].mean() == pytest.approx(0.02, rel=0.03)
    assert intervals_s[-2] < 0.1
    assert intervals_s[-1] < 1
    for burst in range(8, 18):
        energy_j, timing_j, _ = energy_of(gpu, burst * 0.5, burst * 0.5 + 0.25)
        assert timing_j is not None
        assert energy_j == pytest.approx(150, abs=max(4 * timing_j, 8))


@pytest.mark.parametrize(
    "fault",
    [
        {"failing": "samples", "failing_from_s": 10.0, "failing_until_s": 26.0},
        {"sample_gap_from_s": 10.0, "sample_gap_until_s": 26.0},
    ],
    ids=["errors", "the old buffer, then an empty one"],
)
def test_while_samples_cease_every_change_is_looked_for_and_joules_stay_right(
    metered: Metered, fault: dict[str, Any]
) -> None:
    """With an error or without one; once they are back, about one change a second is enough again."""
    for_good: dict[str, Any] = {name: 1e9 if name.endswith("until_s") else value for name, value in fault.items()}
    profile = (fake_nvml.square(100.0, 600.0, 0.4, 0.5),)
    gpus = [FakeGpu(uuid=fake_nvml.uuid_of(1), profile=profile, **fault)]
    gpus += [FakeGpu(uuid=fake_nvml.uuid_of(2), profile=profile, **for_good)]
    back, gone = metered(gpus, 45).gpus.values()
    for gpu, returns_s in ((back, 26), (gone, 44)):
        assert gpu.power_courses == ("driver_samples", "counter_only")
        [event] = (event for event in gpu.events if event.kind == "samples_ceased")
        assert event.at_ns == pytest.approx(ORIGIN_NS + 10 * S, abs=0.6 * S)
        changes_s = (gpu.ticks.after_start_ns - ORIGIN_NS) / S
        assert np.diff(changes_s[(changes_s > 12.5) & (changes_s < returns_s)]).max() < 0.3
        for start_s, end_s, most_j in ((8.5, 10.1, 150), (9, 15, 150), (10.5, 20.5, 150), (15, 19, 15), (20, 40, 15)):
            energy_j, timing_j, reason = energy_of(gpu, start_s, end_s)
            assert timing_j is not None, reason
            assert energy_j == pytest.approx(350 * (end_s - start_s), abs=3 * timing_j)
            assert timing_j < most_j
    stored = back.inside([Span("", ORIGIN_NS + 18 * S, ORIGIN_NS + 44 * S)])
    assert stored.power_courses == back.power_courses
    assert energy_of(stored, 22, 38)[0] == pytest.approx(350 * 16, abs=25)
    assert np.median(np.diff(back.ticks.after_start_ns[back.ticks.after_start_ns > ORIGIN_NS + 28 * S])) > S
    assert np.diff(gone.series["power_w"].at_ns).min() > 0.03 * S


@pytest.mark.parametrize(
    "gpu",
    [
        FakeGpu(sample_period_s=0.1),
        FakeGpu(sample_gap_from_s=-100.0, sample_gap_until_s=0.0),
        FakeGpu(failing_from_s=0.0, failing="samples"),
    ],
    ids=["far apart", "too few", "errors"],
)
def test_samples_that_tell_no_course_leave_the_counter_alone(metered: Metered, gpu: FakeGpu) -> None:
    """Then every change is looked for, and the result says which course it had, and why."""
    recorded = only(metered([gpu], 10))
    assert recorded.power_courses == ("counter_only",)
    assert len(recorded.ticks.energy_mj) > 90
    assert any(event.reading == POWER_SAMPLES for event in recorded.events)
    assert known(recorded, (2, 6), (7, 9)) == [True, True]
