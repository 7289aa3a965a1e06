"""Drift of a pass: what is stationary is shown to be, what drifts is shown to, and too short a pass decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.records import experiment, measured, request, stepped_power, timeline
from make.traffic import ClosedLoop, KnownJoules, closed_loop
from seams.analysis import Change, Drift, Measured, SpanJoules, drift, pooled, slope
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig, WorkloadSpec
from wattdock.records import PassRecord, RestartRecord

if TYPE_CHECKING:
    from collections.abc import Callable

GPU, LIMIT = "GPU-a", 0.01
RESTART = RestartRecord(0, started_utc="2026-01-01T00:00:00.000+00:00")


def drift_of(record: PassRecord, energy: SpanJoules, *, in_flight: int = 8, restart: RestartRecord = RESTART) -> Drift:
    config = ExperimentConfig(backend="fake", workload=WorkloadSpec(batch_size=in_flight))
    return drift(Measured(config, (), (GPU,), energy=energy), restart, record)


def change(loop: ClosedLoop, in_flight: int, seed: int, *, of_whole: float = 0.0) -> Change:
    """Return what is found, less the part of a drift of the whole pass that its blocks have."""
    found = drift_of(loop.record, KnownJoules(loop, np.random.default_rng(seed)), in_flight=in_flight)
    assert found.change is not None, found.reason
    assert found.duration_s is not None
    part = found.duration_s / loop.record.span.duration_s
    return found.change._replace(relative=found.change.relative - of_whole * part)


@pytest.mark.parametrize(
    ("lengths", "in_flight", "seconds"),
    [("fixed", 8, 30), ("lognormal", 1, 60), ("lognormal", 8, 60), ("lognormal", 64, 60), ("bimodal", 8, 60)],
)
def test_a_stationary_engine_is_shown_to_be_one_and_twice_the_limit_never_passes(
    lengths: str, in_flight: int, seconds: float
) -> None:
    """Whatever chance gives one half more of: long prompts, long contexts."""
    for seed in range(4):
        loop = closed_loop(seconds, np.random.default_rng(seed), in_flight=in_flight, lengths=lengths)
        assert change(loop, in_flight, seed).is_within(LIMIT) is True
        for drifted in (-2 * LIMIT, 2 * LIMIT):
            found = change(loop.drifting(drifted), in_flight, seed, of_whole=drifted)
            assert found.is_within(found.half95) is not False
            assert change(loop.drifting(1.2 * drifted), in_flight, seed).is_within(LIMIT) is False


def test_a_short_pass_decides_nothing_and_says_how_long_one_must_be() -> None:
    """15 s of 64 requests with lengths like people's; a pass as long as it says is decided."""
    seconds = 15.0
    for expected in (None, True):
        loop = closed_loop(seconds, np.random.default_rng(2), in_flight=64, lengths="lognormal")
        short = change(loop, 64, 2)
        assert short.is_within(LIMIT) is expected
        seconds *= short.duration_factor(LIMIT)
    assert Change(0.0, LIMIT / 2).duration_factor(LIMIT) == pytest.approx(1)
    assert Change(0.0, LIMIT).duration_factor(LIMIT) == pytest.approx(4)


@pytest.mark.parametrize(("relative", "within"), [(0.5, True), (0.75, None), (-1.5, None), (-1.75, False)])
def test_an_interval_that_reaches_a_limit_is_within_it(relative: float, within: bool | None) -> None:
    """And is not outside of it as long as it touches it; half of it is 0.5, and the limit 1."""
    assert Change(relative, 0.5).is_within(1.0) is within


def test_rounds_of_a_static_batch_are_blocks_and_fewer_than_four_say_nothing() -> None:
    """Four rounds of 5 s, of 500 W but the last two 3 % more: blocks are cut where nothing runs."""
    rounds = tuple(request(i, 10 + 5 * (i // 2), 10.5 + 5 * (i // 2), 15 + 5 * (i // 2), 50) for i in range(16))
    done = measured(0, 10, 50, rounds)
    at_s = np.concatenate([10 + 5 * number + np.linspace(0.5, 5, 100) for number in range(8)])
    done = replace(done, tokens=TokenSeries(np.round(at_s * NS_PER_S).astype(np.int64), np.arange(1, 801)))
    gpu = stepped_power(GPU, [(10, 100), (20, 500), (20, 515), (10, 100)])
    found = drift_of(done, SpanJoules(), in_flight=2, restart=replace(RESTART, timeline=timeline(gpu)))
    assert (found.quantity, found.duration_s) == ("energy_per_output_token_j", 40)
    # A line through a step understates the change between its halves by a quarter.
    assert found.relative == pytest.approx(0.75 * 0.03 / 1.015, rel=0.03)
    few = replace(done, requests=rounds[:6])
    assert drift_of(few, SpanJoules(), in_flight=2).reason == ("a pass of 3 rounds of requests, where 4 are needed")


def test_without_energy_it_is_the_speed_that_may_not_drift() -> None:
    """Seconds per token, of a CPU's pass."""
    loop = closed_loop(30, np.random.default_rng(1), in_flight=8, lengths="fixed")
    found = drift(experiment(used=()), RESTART, loop.record)
    assert found.quantity == "s_per_output_token"
    assert found.change is not None
    assert found.change.is_within(LIMIT) is True


def without_instants(loop: ClosedLoop) -> Drift:
    requests = (replace(loop.record.requests[0], first_token_ns=None), *loop.record.requests[1:])
    return drift_of(replace(loop.record, requests=requests), KnownJoules(loop, np.random.default_rng(1)))


def out_of_order(loop: ClosedLoop) -> Drift:
    request = loop.record.requests[0]
    requests = (replace(request, first_token_ns=request.submitted_ns - 1), *loop.record.requests[1:])
    return drift_of(replace(loop.record, requests=requests), SpanJoules())


def before_the_pass(loop: ClosedLoop) -> Drift:
    requests = (replace(loop.record.requests[0], submitted_ns=1), *loop.record.requests[1:])
    return drift_of(replace(loop.record, requests=requests), SpanJoules())


def without_energy(loop: ClosedLoop) -> Drift:
    return drift_of(loop.record, SpanJoules("restarts used different GPUs"))


def too_short(_: ClosedLoop) -> Drift:
    loop = closed_loop(9, np.random.default_rng(1), in_flight=8, lengths="lognormal")
    return drift_of(loop.record, KnownJoules(loop, np.random.default_rng(1)))


@pytest.mark.parametrize(
    ("unknown", "reason"),
    [
        (without_instants, "the engine does not tell when every request began and ended"),
        (out_of_order, "by the runner's clock a request finished, or was submitted, too early"),
        (before_the_pass, "by the runner's clock a request finished, or was submitted, too early"),
        (without_energy, "restarts used different GPUs"),
        (too_short, " s, where 10 s are needed"),
    ],
)
def test_what_is_not_known_has_a_reason(unknown: Callable[[ClosedLoop], Drift], reason: str) -> None:
    """And no figure."""
    found = unknown(closed_loop(20, np.random.default_rng(1), in_flight=8, lengths="fixed"))
    assert (found.relative, found.half95, found.change) == (None, None, None)
    assert str(found.reason).endswith(reason)


@pytest.mark.parametrize("count", [3, 4, 12, 40])
def test_a_line_s_interval_holds_its_slope(count: int) -> None:
    """In 95 % of 400 draws, with the scatter of 2 % of each value and a term that explains half of a change."""
    held = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        at, term = np.linspace(0, 1, count), random.uniform(1, 2, count)
        values = 5 * (1 + 0.03 * (at - 0.5)) * (1 + 0.5 * (term / term.mean() - 1)) + random.normal(0, 0.1, count)
        found = (
            slope(at, values, [term] if count > 4 else [])
            if count > 4
            else slope(at, 5 * (1 + 0.03 * (at - 0.5)) + random.normal(0, 0.1, count))
        )
        assert found is not None
        held += abs(found.relative - 0.03) <= found.half95
    assert held >= 0.92 * 400


def test_a_term_that_grows_with_time_leaves_the_trend_unknown_and_one_that_is_constant_does_not() -> None:
    """What grows by 20 % may be the cause of all of it; what grows by a thousandth cannot be."""
    at, random = np.linspace(0, 1, 20), np.random.default_rng(1)
    values = 1 + 0.02 * at + random.normal(0, 0.001, 20)
    widths = {grown: found.half95 for grown in (0.0, 0.001, 0.2) if (found := slope(at, values, [1 + grown * at]))}
    assert widths[0.0] < 0.002
    assert widths[0.001] < 0.004
    assert widths[0.2] > 0.1


def test_changes_pool_by_what_is_known_of_them() -> None:
    """A short pass hardly counts beside a long one."""
    both = pooled([Change(0.002, 0.001), Change(0.02, 0.01)])
    assert both.relative == pytest.approx((0.002 / 1e-6 + 0.02 / 1e-4) / (1e6 + 1e4))
    assert both.half95 == pytest.approx((1e6 + 1e4) ** -0.5)
    assert str(both) == "+0.22 % ± 0.10 %"


@pytest.mark.parametrize(("lengths", "in_flight", "seconds"), [("lognormal", 64, 15), ("bimodal", 8, 30)])
def test_the_interval_of_a_stationary_engine_holds_zero(lengths: str, in_flight: int, seconds: float) -> None:
    """In about 95 % of passes, and on average there is no change: also where steps get quicker at the end of a pass."""
    loops = [
        closed_loop(seconds, np.random.default_rng(seed), in_flight=in_flight, lengths=lengths) for seed in range(60)
    ]
    found = [change(loop, in_flight, seed) for seed, loop in enumerate(loops)]
    assert sum(abs(each.relative) <= each.half95 for each in found) >= 53
    assert abs(np.mean([each.relative for each in found])) < 0.1 * LIMIT
