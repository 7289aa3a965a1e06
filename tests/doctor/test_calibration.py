"""What load pulses show of an energy counter whose faults are known, because it is simulated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu, Segment, constant, square
from make.audit_world import gpu_info
from refused import raises
from seams.doctor import Pulse, card_of_pulses, recorded_card
from seams.metering import COUNTER_LAG, MIN_PULSES, NvmlSource, read_cards, with_card

from wattdock.errors import Cause, MeterError
from wattdock.metering import Meter
from wattdock.metering.cards import MeterCard

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.metering import GpuTimeline

PULSES, PERIOD_S, DUTY = 60, 1.3713, 0.45


def recorded(library: Path, gpu: FakeGpu) -> tuple[GpuTimeline, MeterCard]:
    """Let the real meter record pulses whose distance is no multiple of the counter's period, and judge the counter."""
    with fake_nvml.loaded(library, gpus=[gpu]) as fake:
        meter = Meter(NvmlSource(), clock=fake, every_change=True)
        meter.start()
        [timeline] = meter.stop(_ns((PULSES + 3) * PERIOD_S)).gpus.values()
    starts_s = PERIOD_S * np.arange(2, PULSES + 2)
    pulses = [Pulse("square", _ns(at_s), _ns(at_s + DUTY * PERIOD_S)) for at_s in starts_s]
    return timeline, card_of_pulses(timeline, pulses, gpu_info(0, gpu), measured_utc="2026-01-01T00:00:00+00:00")


def card_of(library: Path, gpu: FakeGpu) -> MeterCard:
    return recorded(library, gpu)[1]


def _ns(at_s: float) -> int:
    return fake_nvml.VIRTUAL_ORIGIN_NS + round(at_s * 1e9)


def loaded(lag_s: float = 0.0, profile: tuple[Segment, ...] = (square(100, 600, PERIOD_S, DUTY),)) -> FakeGpu:
    return FakeGpu(profile=profile, lag_s=lag_s)


@pytest.mark.parametrize("lag_s", [0.0, 0.012, 0.03])
def test_the_lag_that_was_built_in_is_found_within_its_uncertainty(library: Path, lag_s: float) -> None:
    """Sixty pulses at any phase, both edges."""
    card = card_of(library, loaded(lag_s))
    assert card.lag_s is not None
    assert card.lag_std_s is not None
    assert card.lag_s == pytest.approx(lag_s, abs=max(0.003, 3 * card.lag_std_s))
    assert card.lag_std_s < 0.004
    assert [step.kind for step in card.steps] == ["square on", "square off"]


def test_period_reads_smoothing_and_additivity_are_those_of_the_simulated_counter(library: Path) -> None:
    """100 ms with some jitter, 3.2 ms a read, steps shown at once, nothing lost between pulses."""
    card = card_of(library, loaded())
    assert card.period_s == pytest.approx(0.1, rel=0.02)
    assert 0 < card.period_std_s < 0.03
    assert card.read_median_s == pytest.approx(0.0032, rel=0.3)
    assert card.read_p99_s > card.read_median_s
    assert card.smoothing_periods == pytest.approx(0, abs=0.3)
    assert card.additivity == pytest.approx(0, abs=2e-3)
    assert card.pulses == PULSES


@pytest.mark.parametrize(
    ("gpu", "listed", "made"),
    [
        (loaded(), loaded(), True),
        (loaded(), FakeGpu(uuid=fake_nvml.uuid_of(2)), False),
        (FakeGpu(unsupported="energy"), loaded(), False),
        (FakeGpu(frozen_at_s=0.0), loaded(), False),
    ],
    ids=["a counter", "another GPU's", "none", "one that stands still"],
)
def test_a_card_is_made_of_the_counter_of_its_gpu_whose_period_is_known(
    library: Path, gpu: FakeGpu, listed: FakeGpu, *, made: bool
) -> None:
    """The load says when its pulses really began and ended."""
    with fake_nvml.loaded(library, gpus=[gpu]) as fake:

        def load() -> str:
            fake.sleep(3.0)
            return "\n".join(json.dumps(["square", _ns(at_s), _ns(at_s + 0.3)]) for at_s in (1.0, 2.0))

        meter = Meter(NvmlSource(), clock=fake, every_change=True)
        if made:
            card = recorded_card(gpu_info(0, listed), meter, load)
            assert (card.gpu_uuid, card.pulses) == (gpu.uuid, 2)
        else:
            with raises(MeterError, listed.uuid, cause=Cause.NO_GPU):
                recorded_card(gpu_info(0, listed), meter, load)


def test_without_a_step_there_is_no_lag(library: Path) -> None:
    """A GPU that did not take the load must not get a figure."""
    card = card_of(library, loaded(profile=(square(100, 110, PERIOD_S, DUTY),)))
    assert (card.lag_s, card.steps) == (None, [])


def test_a_step_that_begins_with_an_overshoot_is_left_out(library: Path) -> None:
    """A tenth of a second above what follows makes the beginning look early in spite of the lag, as on an H200."""
    burst = (constant(700, 0.1), constant(600, DUTY * PERIOD_S - 0.1), constant(120, (1 - DUTY) * PERIOD_S))
    card = card_of(library, loaded(0.008, profile=burst * (PULSES + 4)))
    by_kind = {step.kind: step for step in card.steps}
    assert by_kind["square on"].mean_s < -0.005
    assert {kind: step.overshoot for kind, step in by_kind.items()} == {"square on": True, "square off": False}
    assert card.lag_s == pytest.approx(0.008, abs=0.003)
    # How far kinds of steps differ, one of them does not tell.
    assert card.lag_std_s is not None
    assert card.lag_std_s >= COUNTER_LAG.std_s


def test_a_kind_of_pulse_needs_ten_steps_for_the_card_s_lag(library: Path) -> None:
    """Its own figure is there from two of them on."""
    timeline, _ = recorded(library, loaded(0.012))
    starts_s = PERIOD_S * np.arange(2, PULSES + 2)
    for count, known in ((9, False), (10, True)):
        pulses = [Pulse("square", _ns(at_s), _ns(at_s + DUTY * PERIOD_S)) for at_s in starts_s[:count]]
        card = card_of_pulses(timeline, pulses, gpu_info(0, FakeGpu()), measured_utc="")
        assert ([step.steps for step in card.steps], card.lag_s is not None) == ([count, count], known)
    alone = card_of_pulses(timeline, pulses[:1], gpu_info(0, FakeGpu()), measured_utc="")
    assert (alone.steps, alone.lag_s, alone.additivity) == ([], None, None)


@pytest.fixture(scope="module")
def sound(library: Path) -> tuple[GpuTimeline, MeterCard]:
    """A GPU's timeline, and a card of its counter that fits."""
    timeline, card = recorded(library, loaded(0.012))
    return timeline, card.model_copy(update={"pulses": MIN_PULSES})


def test_a_card_under_an_unknown_driver_is_not_used(sound: tuple[GpuTimeline, MeterCard], tmp_path: Path) -> None:
    """Nobody knows whether it is the one that the card was made under; a card at its limits is."""
    gpu = gpu_info(0, loaded(0.012))
    sound[1].model_copy(update={"additivity": -0.005, "smoothing_periods": 0.99}).store(tmp_path)
    assert isinstance(read_cards(tmp_path, [gpu])[gpu.uuid], MeterCard)
    [problem] = read_cards(tmp_path, [gpu.model_copy(update={"driver_version": None})]).values()
    assert "driver None" in str(problem)


def with_card_of(home: Path, timeline: GpuTimeline) -> GpuTimeline:
    [gpu] = gpus = [gpu_info(0, loaded(0.012))]
    return with_card(timeline, read_cards(home, gpus).get(gpu.uuid), at_ns=0)


def test_a_timeline_cites_the_card_that_its_lag_comes_from(
    sound: tuple[GpuTimeline, MeterCard], tmp_path: Path
) -> None:
    """A result that names a card says that its lag was measured; without a card nothing is said."""
    timeline, card = sound
    assert with_card_of(tmp_path, timeline) == timeline
    card.store(tmp_path)
    cited = with_card_of(tmp_path, timeline)
    assert cited.lag is not None
    assert (cited.card, cited.lag.mean_s) == (card.measured_utc, card.lag_s)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lag_s": None}, " lag"),
        ({"gpu_name": "NVIDIA A100"}, "NVIDIA A100, driver 580"),
        ({"driver_version": "470.1"}, "driver 470.1"),
        ({"pulses": 30}, "30 pulses"),
        ({"additivity": -0.2}, "(-0.2)"),
        ({"smoothing_periods": 1.0}, "(1.0 periods)"),
        ({"additivity": None}, "(None)"),
        ({"smoothing_periods": None}, "(None periods)"),
        ({"period_s": "cut off"}, "(ValidationError)"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_a_card_that_does_not_fit_is_an_event_and_the_lag_is_assumed(
    sound: tuple[GpuTimeline, MeterCard], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """The reason stands among the events that the result holds."""
    timeline, card = sound
    card.model_copy(update=change).store(tmp_path)
    timeline = with_card_of(tmp_path, timeline)
    assert (timeline.card, timeline.lag) == (None, None)
    assert [event.kind for event in timeline.events if message in event.said] == ["card_unused"]
