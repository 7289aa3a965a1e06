"""The withdrawn figure, 0.3571 J per output token: today's audit calls it wrong, today's budget corrects it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from golden.replay import analysed, load, restarts_of
from make.outcomes import known
from seams.metering import Series, Ticks

from wattdock.audit import audited
from wattdock.metering import GpuTimeline, Timeline

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult

# The meter's readings of the recorded restart: counter changes, power every 20 ms, temperature every second. Source:
# the bundle of the withdrawn figure.
METER = Path(__file__).parent / "withdrawn-meter.npz"


@pytest.fixture(scope="module")
def withdrawn() -> ExperimentResult:
    """Return the result of the recorded restart with its meter's readings."""
    case = load("h100-wrapped-list")
    (record,), (without, _) = restarts_of(case.facts, case.restarts), analysed(case.facts, case.restarts)
    [uuid] = case.facts["gpus"]
    with np.load(METER) as read:
        ticks = Ticks(**{field.name: read[field.name] for field in dataclasses.fields(Ticks)})
        series = {
            "power_sample_w": Series(np.cumsum(read["power_at_us"]) * 1_000, read["power_w"].astype(np.float64)),
            "temperature_c": Series(read["temperature_at_s"] * 1_000_000_000, read["temperature_c"].astype(np.float64)),
        }
    gpu = GpuTimeline(uuid, "counter", ticks, series=series)
    timeline = Timeline("nvml", int(ticks.after_end_ns[0]), int(ticks.after_end_ns[-1]), {uuid: gpu})
    environment = known(record.environment).model_copy(update={"gpu_uuids": [uuid], "gpu_count": 1})
    return audited(without.config, [dataclasses.replace(record, timeline=timeline, environment=environment)])


def test_its_window_has_the_joules_of_its_tokens(withdrawn: ExperimentResult) -> None:
    """Published were 50,492 J of 141,452 tokens, 0.35695 J each: that window began where it did not balance its end."""
    [window] = known(known(withdrawn.energy).windows).of_headline()
    assert (window.window, window.output_tokens) == ("steady_state", 140_558)
    assert window.total_j == pytest.approx(49_978.1, rel=1e-4)
    assert known(withdrawn.budget).measured == pytest.approx(0.355570, rel=1e-4)


def test_it_is_refused_as_wrong_by_the_check_on_the_work(withdrawn: ExperimentResult) -> None:
    """382 prompt tokens per output token instead of 375 (383.5 in the published window), whose chance is 0.13 %."""
    audit = known(withdrawn.audit)
    first = audit.reasons[0]
    assert (first.question, first.name, first.status) == ("wrong", "work sent against work declared", "fail")
    assert first.found.startswith("answer tokens are -1.77% off those declared; prompt tokens per output token are ")
    assert "are +1.81% off the long run (by chance ± 0.13%); J/token is corrected by -1.3" in first.found
    said = "not publishable: something is wrong: work sent against work declared: answer tokens are -1.77% off those"
    assert audit.summary.startswith(said)


def test_its_corrected_figure_is_that_of_the_declared_work(withdrawn: ExperimentResult) -> None:
    """Two other ways gave 0.3501 and 0.3500, over three restarts of which this one lay 0.05 % below the mean."""
    assert known(withdrawn.budget).energy_per_unit_j == pytest.approx(0.350, rel=0.005)
    assert known(withdrawn.budget).interval is None
