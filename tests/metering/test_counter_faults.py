"""A counter that loses or gains energy: no interval leaves the truth out, and no jump counts as joules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu
from hypothesis import given, settings
from hypothesis import strategies as st
from metering.recordings import NO_SAMPLES, S, energy_of, only, recorded
from seams.metering import SAMPLES, Series, Ticks

from wattdock.metering import EnergyCurve, GpuTimeline, Span

if TYPE_CHECKING:
    from pathlib import Path

WATTS = 600.0
AT_S, UNTIL_S = 12.0, 24.0
PROFILE = (fake_nvml.constant(100.0, 4.0), fake_nvml.constant(WATTS))
LENGTHS_S = st.floats(0.1, 4.9)
FAULTS = st.one_of(
    st.builds(lambda lasts_s: {"frozen_at_s": AT_S, "thaws_at_s": AT_S + lasts_s}, LENGTHS_S),
    # As of a virtual machine that is stopped, its clock with it, while the board goes on.
    st.builds(lambda jump_mj: {"jumps_at_s": AT_S, "jump_mj": jump_mj}, st.floats(1e4, 1e7)),
    st.builds(
        lambda lasts_s, jump_mj: {"jumps_at_s": AT_S, "jumps_until_s": AT_S + lasts_s, "jump_mj": jump_mj},
        LENGTHS_S,
        st.floats(1e4, 1e12) | st.floats(-1e10, -1e4),
    ),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(fault=FAULTS, spans=st.lists(st.tuples(st.floats(5.0, 22.0), st.floats(0.3, 16.0)), min_size=6, max_size=6))
def test_what_a_counter_loses_or_gains_is_in_the_interval_of_every_span(
    library: Path, fault: dict[str, Any], spans: list[tuple[float, float]]
) -> None:
    """Samples tell what the counter did not; five standard uncertainties, as faults are whole and not drawn."""
    gpu = only(recorded(library, [FakeGpu(profile=PROFILE, **fault)], UNTIL_S))
    for start_s, length_s in [*spans, (6.0, 16.0)]:
        end_s = min(start_s + length_s, 22.5)
        energy_j, timing_j, reason = energy_of(gpu, start_s, end_s)
        if energy_j is None:
            assert reason
        else:
            assert timing_j is not None
            assert energy_j == pytest.approx(WATTS * (end_s - start_s), abs=5 * timing_j)


@pytest.mark.parametrize(
    ("fault", "off_j"),
    [
        ({}, 0.0),
        ({"frozen_at_s": AT_S, "thaws_at_s": AT_S + 0.5}, 300.0),
        ({"jumps_at_s": AT_S, "jump_mj": 2e6}, 2000.0),
        # Both ends of it are inside: nothing is lost.
        ({"jumps_at_s": AT_S, "jumps_until_s": AT_S + 3.2, "jump_mj": 5e5}, 0.0),
    ],
    ids=["sound", "half a second is lost", "2 kJ too many", "up and down"],
)
def test_a_contradiction_is_as_large_as_what_samples_say(library: Path, fault: dict[str, Any], off_j: float) -> None:
    """A sound counter's interval stays as narrow as it was."""
    gpu = only(recorded(library, [FakeGpu(profile=PROFILE, **fault)], UNTIL_S))
    _, timing_j, _ = energy_of(gpu, 6, 22)
    assert timing_j == pytest.approx(off_j, rel=0.08, abs=15)


@pytest.mark.parametrize("rows", [[], [(1 * S, 1 * S, 2 * S, 2 * S, 600)]], ids=["no change", "one change"])
@pytest.mark.parametrize("series", [{}, {SAMPLES: Series.from_rows([(1 * S, 80.0), (2 * S, 80.0)])}])
def test_a_counter_that_hardly_changed_gives_a_reason(
    rows: list[tuple[int, int, int, int, int]], series: dict[str, Series]
) -> None:
    """As where its reading breaks off at once, with samples and without."""
    gpu = GpuTimeline("GPU-a", "counter", Ticks.from_rows(rows), series)
    spans = [Span("pass", 1 * S, 2 * S), Span("pass", 3 * S, 4 * S)]
    found = [(energy.energy_j, energy.reason) for energy in EnergyCurve(gpu).measured(spans)]
    assert found == [(None, "the energy counter never changed")] * 2


@pytest.mark.parametrize(
    ("jump_mj", "unsupported"),
    [(1e8, ""), (1e8, NO_SAMPLES), (-1e15, NO_SAMPLES)],
    ids=["far too much", "far too much, without samples", "nothing, without samples"],
)
def test_a_reading_that_no_board_can_have_used_gives_no_joules_on_either_side(
    library: Path, jump_mj: float, unsupported: str
) -> None:
    """Neither as the counter jumps nor as it comes back, which is growth of a whole counter where it showed nothing."""
    jump = FakeGpu(jumps_at_s=AT_S, jumps_until_s=AT_S + 3.0, jump_mj=jump_mj, unsupported=unsupported)
    gpu = only(recorded(library, [replace(jump, profile=PROFILE)], UNTIL_S))
    for start_s, end_s in ((10, 14), (14, 18), (11.95, 14)):
        energy_j, _, reason = energy_of(gpu, start_s, end_s)
        assert (energy_j, "was reset" in str(reason)) == (None, True)
    assert energy_of(gpu, 6, 10)[0] == pytest.approx(4 * WATTS, rel=0.01)
    assert energy_of(gpu, 17, 21)[0] == pytest.approx(4 * WATTS, rel=0.01)
