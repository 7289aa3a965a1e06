"""How long what is left will take: only what was seen, and bounds."""

from __future__ import annotations

from typing import Any

import pytest

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig
from wattdock.execution.schedule import Cost, Remaining, cost_of, duration, words
from wattdock.metering.timeline import Span


def config(**settings: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate(settings)


def span(name: str, start_s: int, end_s: int) -> Span:
    return Span(name, start_s * NS_PER_S, end_s * NS_PER_S)


def test_the_cost_of_an_experiment_is_that_of_its_spans() -> None:
    """Two restarts: means of opening and passes; warm-up and what else a pass needs around it, per restart."""
    one = [
        span("launch", 0, 2),
        span("load", 2, 10),
        span("warm-up", 10, 13),
        span("pass", 13, 18),
        span("pass", 18, 25),
        span("one-token", 25, 27),
    ]
    other = [
        span("idle-empty", 28, 30),
        span("launch", 30, 34),
        span("load", 34, 44),
        span("warm-up", 44, 49),
        span("pass", 50, 56),
    ]
    assert cost_of([*one, *other]) == Cost(opening_s=2 + 3 + 9, around_s=5, pass_s=6)


def test_what_was_seen_is_multiplied_by_what_is_left() -> None:
    """Each restart that is left opens its group once and warms each experiment up."""
    seen = Cost(opening_s=10, around_s=2, pass_s=5)
    work = [Remaining(config(), (2, 2), seen), Remaining(config(), (1,), seen)]
    left = duration(work, ((0, 1),))
    assert left.whole
    assert left.seconds == 2 * 10 + (2 * 2 + 4 * 5) + (2 + 5)


def test_what_was_never_seen_counts_with_its_bound_and_is_called_so() -> None:
    """A pass lasts at least as long as was asked for; more would be a guess."""
    work = [Remaining(config(workload={"min_duration_s": 20}), (3,), None)]
    left = duration(work, ((0,),))
    assert (left.seconds, left.whole) == (60, False)
    assert str(left) == "at least 60 s"
    assert str(duration([Remaining(config(), (1,), None)], ((0,),))) == "time unknown"


def test_opening_another_group_takes_what_the_same_backend_took() -> None:
    """Before a group was opened, its backend's is the nearest that was seen."""
    seen, unseen = Remaining(config(), (1,), Cost(7, 0, 1)), Remaining(config(), (1,), Cost(None, 0, 1))
    assert duration([seen, unseen], ((0,), (1,))).seconds == 2 * 7 + 2
    other = Remaining(config(backend="vllm"), (1,), Cost(None, 0, 1))
    assert not duration([seen, other], ((0,), (1,))).whole


def test_nothing_left_takes_no_time() -> None:
    """And that is known, not bounded."""
    assert str(duration([Remaining(config(), (), None)], ((0,),))) == "0 s"


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (89, "89 s"), (125, "2 min"), (12_000, "3 h 20 min")])
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    """No more figures than are meant."""
    assert words(seconds) == text
