"""Runs with a lead-in: where their window lies, and when the coordinator may end them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.records import experiment, measured, request
from seams.analysis import WINDOWS, NoWindowError, is_long_enough

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wattdock.config import ExperimentConfig
    from wattdock.records import PassRecord

    Floats = NDArray[np.float64]

BEGIN_S, BEAT_S = 100.0, 0.5


def settings(arrival: str, in_flight: int, *, min_duration_s: float | None = None, **warmup: Any) -> ExperimentConfig:
    rate = {"rate_per_s": 1.0} if arrival == "poisson" else {}
    workload = {"arrival": arrival, "batch_size": in_flight, "min_duration_s": min_duration_s, **rate}
    return experiment(workload=workload, warmup={"profile": "lead-in", **warmup}).config


def record(submitted_s: Floats, finished_s: Floats, *, scheduled: bool = False) -> PassRecord:
    """Return a pass of these requests, whose first tokens come after a tenth of their time; it begins at 100 s."""
    requests = [
        request(index, BEGIN_S + begin, BEGIN_S + begin + (end - begin) / 10, BEGIN_S + end, 10)
        for index, (begin, end) in enumerate(zip(submitted_s.tolist(), finished_s.tolist(), strict=True))
    ]
    if scheduled:
        requests = [replace(each, intended_ns=each.submitted_ns) for each in requests]
    return measured(0, BEGIN_S, BEGIN_S + float(finished_s.max()) + 0.1, tuple(requests))


def window(done: PassRecord, config: ExperimentConfig) -> tuple[float, float] | str:
    """Return where the steady state lies, s from the first request on, or why there is none."""
    try:
        start_ns, end_ns = WINDOWS["steady_state"](done, config)
    except NoWindowError as error:
        return str(error)
    return start_ns / NS_PER_S - BEGIN_S, end_ns / NS_PER_S - BEGIN_S


# Two in flight or so: a request of a second each half second; rounds of two, of two seconds, each three seconds.
EACH_HALF = np.arange(64) / 2
ROUNDS = np.repeat(np.arange(12) * 3.0, 2)


@pytest.mark.parametrize(
    ("arrival", "lead_in", "least_s", "expected"),
    [
        ("closed", {"lead_in_s": 10}, None, (10, 31.5)),
        # The longer of both counts: a lifetime is a second.
        ("closed", {"lead_in_s": 10, "lead_in_lifetimes": 11.5}, None, (11.5, 31.5)),
        ("closed", {"lead_in_s": 12}, None, "19.5 s of 20.0 s (5 lifetimes of 1.00 s)"),
        ("closed", {"lead_in_s": 12}, 19, (12, 31.5)),
        ("closed", {"lead_in_s": 12, "window_lifetimes": 19.6}, 19, "19.5 s of 19.6 s (19.6 lifetimes of 1.00 s)"),
        ("closed", {"lead_in_s": 32}, None, "no request came after 2 had their first token and the lead-in was over"),
        ("poisson", {"lead_in_s": 10}, None, (10, 31.5)),
        # It has no beginning that is not full: a mean lifetime is the least.
        ("poisson", {"lead_in_s": 0, "lead_in_lifetimes": 0.5}, None, (1, 31.5)),
        ("poisson", {"lead_in_s": 31.5}, None, "no request arrived a mean lifetime after the first"),
        # The first round that begins after it.
        ("batch", {"lead_in_s": 10}, None, (12, 35)),
        ("batch", {"lead_in_s": 12}, None, (12, 35)),
        ("batch", {"lead_in_s": 12.1}, None, (15, 35)),
        ("batch", {"lead_in_s": 15.1}, None, "17.0 s of 20.0 s (5 lifetimes of 2.00 s)"),
        ("batch", {"lead_in_s": 33.1}, None, "no round of requests begins after the lead-in"),
    ],
)
def test_the_window_begins_behind_the_lead_in(
    arrival: str, lead_in: dict[str, float], least_s: float | None, expected: tuple[float, float] | str
) -> None:
    """While the engine is full, while requests arrive, or in whole rounds; as long as it is to be, or there is none."""
    begins_s, length_s = (ROUNDS, 2.0) if arrival == "batch" else (EACH_HALF, 1.0)
    done = record(begins_s, begins_s + length_s, scheduled=arrival == "poisson")
    found = window(done, settings(arrival, 2, min_duration_s=least_s, **lead_in))
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected))


def lifetimes(kind: str, mean_s: float, count: int, random: np.random.Generator) -> Floats:
    if kind == "bimodal":
        return np.where(random.random(count) < 5 / 6, 0.6, 3.0) * mean_s
    sigma = {"fixed": 0.0, "lognormal": 0.7}[kind]
    return mean_s * random.lognormal(-(sigma**2) / 2, sigma, count)


def stream(arrival: str, in_flight: int, kind: str, mean_s: float, random: np.random.Generator) -> tuple[Floats, ...]:
    """Return when requests are submitted and finish, s, in order of submission, for longer than any run goes on."""
    rounds = 60 + int(200 / mean_s)
    lengths_s: Floats = lifetimes(kind, mean_s, rounds * in_flight, random).reshape(rounds, in_flight)
    submitted_s: Floats
    if arrival == "poisson":
        submitted_s = np.cumsum(random.exponential(mean_s / in_flight, lengths_s.size)).reshape(lengths_s.shape)
        submitted_s -= submitted_s[0, 0]
    elif arrival == "closed":
        # The slots are out of step from the first.
        lengths_s[0] *= np.arange(1, in_flight + 1) / in_flight
        submitted_s = np.cumsum(lengths_s, axis=0) - lengths_s
    else:
        of_rounds_s = lengths_s.max(axis=1, keepdims=True)
        submitted_s = np.broadcast_to(np.cumsum(of_rounds_s, axis=0) - of_rounds_s, lengths_s.shape)
    order = np.argsort(submitted_s, axis=None, kind="stable")
    return submitted_s.ravel()[order], (submitted_s + lengths_s).ravel()[order]


def ended(config: ExperimentConfig, submitted_s: Floats, finished_s: Floats) -> float:
    """Return after how many seconds a run of these requests may end; it is asked at each heartbeat."""
    at_s, in_flight_s = 0.0, 0.0
    ends_s = np.sort(finished_s)
    while True:
        begun, finished = (int(np.searchsorted(instants, at_s, "right")) for instants in (submitted_s, ends_s))
        if is_long_enough(config, elapsed_s=at_s, finished=finished, in_flight_s=in_flight_s):
            return at_s
        in_flight_s += (begun - finished) * BEAT_S
        at_s += BEAT_S


@pytest.mark.parametrize("kind", ["fixed", "lognormal", "bimodal"])
@pytest.mark.parametrize(
    ("arrival", "in_flight"),
    [("single", 1), ("batch", 4), ("batch", 32), ("closed", 1), ("closed", 8), ("closed", 64), ("poisson", 6)],
)
# Below 8 s the seconds of lead-in and window count, above 22.5 s the lifetimes, between them one of each.
@pytest.mark.parametrize("mean_s", [5.0, 20.0, 60.0])
def test_a_run_that_may_end_has_a_window(arrival: str, in_flight: int, kind: str, mean_s: float) -> None:
    """In nearly all of many draws, whose lengths differ; and it does not go on for long after it has one."""
    config, windowless, ends_s = settings(arrival, in_flight, min_duration_s=40), list[str](), list[float]()
    for seed in range(25):
        submitted_s, finished_s = stream(arrival, in_flight, kind, mean_s, np.random.default_rng(seed))
        end_s = ended(config, submitted_s, finished_s)
        begun = submitted_s <= end_s
        # Requests in flight finish, and no other begins.
        done = record(submitted_s[begun], finished_s[begun], scheduled=arrival == "poisson")
        found = window(done, config)
        windowless += [found] if isinstance(found, str) else []
        ends_s.append(end_s)
    assert len(windowless) <= 1, windowless
    needed_s = max(45, 2 * mean_s) + max(40, 5 * mean_s)
    drawn_s = lifetimes(kind, mean_s, 10_000 * in_flight, np.random.default_rng(0)).reshape(-1, in_flight)
    round_s = float(drawn_s.max(axis=1).mean())
    slack_s = 2 * (round_s + mean_s) if config.workload.has_rounds else mean_s + max(5 * mean_s / in_flight, mean_s)
    # What is in flight counts as if it were in vain: a tenth or so.
    assert np.median(ends_s) <= 1.15 * (needed_s + slack_s)


def test_a_run_without_a_lead_in_may_end_at_any_time_and_one_where_nothing_finished_never() -> None:
    """The runner's own minima end the former."""
    quick = settings("closed", 8, profile="quick")
    assert is_long_enough(quick, elapsed_s=0.0, finished=0, in_flight_s=0.0)
    assert not is_long_enough(settings("closed", 8), elapsed_s=1e6, finished=0, in_flight_s=8e6)
