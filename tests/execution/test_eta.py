"""How long what is left will take: only what was seen, and bounds."""

from __future__ import annotations

from typing import Any

import pytest

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig
from wattdock.execution.schedule import Remaining, duration, pass_seconds, words
from wattdock.metering.timeline import Span


def config(**settings: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate(settings)


def span(name: str, start_s: int, end_s: int) -> Span:
    return Span(name, start_s * NS_PER_S, end_s * NS_PER_S)


def test_a_pass_takes_its_share_of_what_is_around_it_but_not_of_the_load() -> None:
    """Experiments that share a runner load once; a failed load has no pass to tell of."""
    first = [span("launch", 0, 2), span("load", 2, 10)]
    measuring = [span("warm-up", 10, 13), span("pass", 13, 18), span("pass", 18, 25), span("one-token", 25, 27)]
    other = [span("idle-empty", 28, 30), span("load", 34, 44), span("warm-up", 44, 49), span("pass", 50, 56)]
    assert pass_seconds([*first, *measuring, *other]) == (3 + 5 + 7 + 2 + 5 + 6) / 3
    assert pass_seconds(first) is None


@pytest.mark.parametrize(
    ("work", "text"),
    [
        # Nothing left takes no time, and that is known.
        ([(0, None)], "0 s"),
        ([(4, 5.0), (1, 10.0)], "30 s"),
        # A pass that was never seen lasts at least as long as was asked for; more would be a guess.
        ([(3, None)], "at least 60 s"),
        ([(3, None), (2, 5.0)], "at least 70 s"),
    ],
)
def test_what_was_seen_is_multiplied_by_what_is_left(work: list[tuple[int, float | None]], text: str) -> None:
    """Only what was seen, and bounds."""
    long = config(workload={"min_duration_s": 20})
    assert duration([Remaining(long, passes, pass_s) for passes, pass_s in work]) == text


def test_what_has_no_bound_is_not_known() -> None:
    """Never seen, and as short as it likes."""
    assert duration([Remaining(config(), 1, None)]) == "time unknown"


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (89, "89 s"), (125, "2 min"), (12_000, "3 h 20 min")])
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    """No more figures than are meant."""
    assert words(seconds) == text
