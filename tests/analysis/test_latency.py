"""Times between tokens, from made-up steps whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.outcomes import known
from make.records import experiment, measured, request, speed_of
from seams.analysis import Drafts, Quantiles, performance
from seams.records import NO_STEPS, Steps, TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.records import RequestRecord, RestartRecord

if TYPE_CHECKING:
    from wattdock.records import PassRecord


def stepped(done: PassRecord, *steps: tuple[float, int]) -> PassRecord:
    """Return the pass with steps that follow each other: (end in s, tokens decoded)."""
    end_ns = np.array([round(end_s * NS_PER_S) for end_s, _ in steps])
    begin_ns = np.concatenate(([done.span.start_ns], end_ns[:-1]))
    decoded, none = np.array([count for _, count in steps]), np.zeros(0, dtype=np.int64)
    return replace(done, steps=Steps(begin_ns, end_ns, none, decoded, none, none))


# The first request decodes through the step that holds the other's prompt, which takes 1 s instead of 0.1 s.
PAIR = (request(0, 10, 10.5, 12.7, 14), request(1, 11, 12.5, 12.7, 3))
SHARED = stepped(
    measured(0, 10, 13, PAIR),
    (10.5, 0),
    *((10.5 + 0.1 * number, 1) for number in range(1, 11)),
    (12.5, 1),
    (12.6, 2),
    (12.7, 2),
)


def test_a_prompt_that_holds_up_another_requests_token_shows_in_the_tail_and_not_in_the_mean_per_request() -> None:
    """15 tokens after a first one: 14 gaps of 0.1 s and the one in which somebody's prompt was computed."""
    speed = speed_of(SHARED)
    assert speed.tpot is not None
    itl = speed.itl
    assert isinstance(itl, Quantiles)
    assert itl.count == 15
    assert itl.p50_s == pytest.approx(0.1)
    assert itl.max_s == pytest.approx(1.0)
    assert itl.mean_s == pytest.approx((14 * 0.1 + 1.0) / 15)
    assert speed.tpot.max_s < 0.2


def test_drafted_tokens_are_told_and_gaps_are_those_between_tokens() -> None:
    """Two accepted tokens come with their step's own: their gaps are 0, where steps' gaps would add up to 0.6 s."""
    drafting = replace(request(0, 10, 10.5, 10.7, 4), token_gaps_ns=(200_000_000, 0, 0))
    done = stepped(measured(0, 10, 11, (drafting,)), (10.5, 0), (10.7, 3))
    speed = speed_of(replace(done, drafted_tokens=5, accepted_tokens=2))
    assert speed.drafts == Drafts(
        drafted_tokens=5, accepted_tokens=2, rejected_tokens=3, acceptance_rate=0.4, engine_steps=2
    )
    assert speed.itl is not None
    assert (speed.itl.count, speed.itl.max_s) == (3, 0.2)
    assert speed.itl.mean_s == pytest.approx(0.2 / 3)
    assert speed_of(done).drafts is None


def test_gaps_of_batches_that_take_turns_are_not_those_of_a_requests_tokens() -> None:
    """Each request has a token every second step; half the gap would be a wrong figure."""
    turns = (request(0, 10, 10.1, 10.9, 5), request(1, 10, 10.2, 11.0, 5))
    done = stepped(
        measured(0, 10, 12, turns), (10.1, 0), (10.2, 0), *((10.2 + 0.1 * number, 1) for number in range(1, 9))
    )
    speed = speed_of(done)
    assert speed.itl is None
    assert speed.itl_reason == "gaps between steps differ from those between a request's tokens by -50% in all"


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (replace(SHARED, steps=NO_STEPS), "the engine does not report its steps"),
        (
            replace(SHARED, requests=tuple(replace(request, replica=0) for request in SHARED.requests)),
            "the steps of several engines overlap",
        ),
        (stepped(measured(0, 10, 11, (request(0, 10, 10.5, 10.5, 1),)), (10.5, 0)), "no token was decoded after a"),
    ],
    ids=["no steps", "replicas", "one token each"],
)
def test_without_steps_of_one_engine_that_decodes_there_is_no_distribution_and_the_reason(
    done: PassRecord, reason: str
) -> None:
    """What the engine does not tell is null, never guessed from means."""
    speed = speed_of(done)
    assert speed.itl is None
    assert (speed.itl_reason or "").startswith(reason)


@pytest.mark.parametrize("has_steps", [True, False])
def test_gaps_of_the_lead_in_are_no_gaps_of_the_window(*, has_steps: bool) -> None:
    """One slot makes a token each second for 28 s, then one each 0.1 s; the window begins after 35 s."""
    requests, ends_s, decoded, at_s = list[RequestRecord](), list[float](), list[int](), 10.0
    while at_s < 90:
        gap_s = 1.0 if at_s < 30 else 0.1
        made = request(len(requests), at_s, at_s + 0.5, at_s + 0.5 + 9 * gap_s, 10)
        requests.append(made if has_steps else replace(made, token_gaps_ns=(round(gap_s * NS_PER_S),) * 9))
        ends_s += [at_s + 0.5 + number * gap_s for number in range(10)]
        decoded += [0] + [1] * 9
        at_s = ends_s[-1]
    done = measured(0, 10, at_s + 1, tuple(requests))
    ends_ns = np.array([round(end_s * NS_PER_S) for end_s in ends_s])
    done = replace(done, tokens=TokenSeries(ends_ns, 1 + np.arange(len(ends_s))))
    workload, warmup = {"arrival": "closed", "batch_size": 1}, {"profile": "lead-in", "lead_in_s": 35}
    restart = RestartRecord(0, passes=(stepped(done, *zip(ends_s, decoded, strict=True)) if has_steps else done,))
    made_up = experiment(restart, workload=workload, warmup=warmup)
    assert made_up.windows.headline == "steady_state"
    itl = known(known(performance(made_up)).itl)
    assert itl.mean_s == pytest.approx(0.1)
    assert itl.max_s == pytest.approx(0.1)
    assert itl.count == pytest.approx(9 * known(made_up.headline[0].duration_s) / 1.4, rel=0.02)
    whole = experiment(restart)
    assert whole.windows.headline == "drained"
    assert known(known(performance(whole)).itl).max_s == pytest.approx(1.0)
