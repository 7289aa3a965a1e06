"""Which experiments share a runner, in which order, and how long they take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seams.execution import schedule
from seams.planning import Remaining, duration, pass_seconds, words

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig, Study
from wattdock.metering import Span
from wattdock.planning import load_groups


def experiments(*settings: dict[str, Any]) -> list[ExperimentConfig]:
    return [ExperimentConfig.model_validate(experiment) for experiment in settings]


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        (({"workload": {"batch_size": 1}}, {"workload": {"batch_size": 8}}), ((0, 1),)),
        (({}, {"pytorch": {"dtype": "float16"}}, {"model": "shape:tiny"}, {"gpus": [1]}), ((0,), (1,), (2,), (3,))),
        (({}, {"model": "shape:tiny"}, {"workload": {"batch_size": 8}}), ((0, 2), (1,))),
        (({"isolation": "experiment"}, {"isolation": "experiment"}), ((0,), (1,))),
    ],
    ids=["a workload travels with each pass", "what was loaded cannot be changed", "wherever they stand", "isolation"],
)
def test_experiments_share_a_runner_where_one_load_serves_them(
    settings: tuple[dict[str, Any], ...], groups: tuple[tuple[int, ...], ...]
) -> None:
    """Loading is what costs; nothing is shared where that was asked for."""
    assert load_groups(experiments(*settings)) == groups


TWELVE = experiments(
    *({"model": model, "workload": {"batch_size": size}} for model in ("a/b", "a/c", "a/d") for size in (1, 2, 3, 4))
)


@given(st.permutations(TWELVE), st.integers(0, 99), st.integers(0, 3))
def test_the_order_depends_on_seed_and_restart_and_not_on_how_the_file_is_written(
    written: list[ExperimentConfig], seed: int, restart: int
) -> None:
    """Each restart serves every experiment once, group by group, in the same order for every way to write it."""
    ids = []
    for order in (TWELVE, written):
        study = Study("s", tuple(order), seed=seed)
        scheduled = schedule(study, restart)
        assert sorted(map(sorted, scheduled)) == sorted(map(sorted, load_groups(order)))
        ids.append([order[position].experiment_id for group in scheduled for position in group])
    assert ids[0] == ids[1]


def test_restarts_differ_in_their_order() -> None:
    """What drifts within a restart must not always fall on the same experiments."""
    study = Study("s", tuple(TWELVE))
    orders = {schedule(study, restart) for restart in range(5)}
    assert len(orders) == 5


def test_the_written_order_is_kept_where_that_was_asked_for() -> None:
    """Some series only make sense from small to large."""
    study = Study("s", tuple(TWELVE), order="written")
    assert schedule(study, 3) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))


def span(name: str, start_s: int, end_s: int) -> Span:
    return Span(name, start_s * NS_PER_S, end_s * NS_PER_S)


def test_a_pass_takes_its_share_of_what_is_around_it_but_not_of_the_load() -> None:
    """Experiments that share a runner load once; a failed load has no pass to tell of."""
    first = [span("launch", 0, 2), span("load", 2, 10)]
    measuring = [span("warm-up", 10, 13), span("pass", 13, 18), span("pass", 18, 25)]
    other = [span("idle-empty", 28, 30), span("load", 34, 44), span("warm-up", 44, 49), span("pass", 50, 56)]
    assert pass_seconds([*first, *measuring, *other]) == (3 + 5 + 7 + 5 + 6) / 3
    assert pass_seconds(first) is None


LONG = {"workload": {"min_duration_s": 20}}
# Each pass has a lead-in of its own: 4 × (45 + 20) s. The idle span comes once a load, which may be shared.
LEAD_IN = {**LONG, "warmup": {"profile": "lead-in"}, "idle": {"duration_s": 30}}


@pytest.mark.parametrize(
    ("settings", "work", "text"),
    [
        # Nothing left takes no time, and that is known.
        (LONG, [(0, None)], "0 s"),
        (LONG, [(4, 5.0), (1, 10.0)], "30 s"),
        # A pass that was never seen lasts at least as long as was asked for; more would be a guess.
        (LONG, [(3, None)], "at least 60 s"),
        (LONG, [(3, None), (2, 5.0)], "at least 70 s"),
        (LONG, [(0, None), (2, 5.0)], "10 s"),
        (LEAD_IN, [(4, None)], "at least 4 min"),
        ({**LEAD_IN, "warmup": {"profile": "lead-in", "lead_in_s": 5}}, [(2, None)], "at least 50 s"),
        # Never seen, and as short as it likes; a second beside it is a bound.
        ({}, [(1, None)], "time unknown until the first pass"),
        ({}, [(1, None), (1, 0.9)], "time unknown until the first pass"),
        ({}, [(1, None), (1, 1.0)], "at least 1 s"),
    ],
)
def test_what_was_seen_is_multiplied_by_what_is_left(
    settings: dict[str, Any], work: list[tuple[int, float | None]], text: str
) -> None:
    """Only what was seen, and bounds."""
    [config] = experiments(settings)
    assert duration([Remaining(config, passes, pass_s) for passes, pass_s in work]) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((4.4, "4 s"), (89.4, "89 s"), (90, "2 min"), (125, "2 min")),
        *((89 * 60, "89 min"), (90 * 60, "1 h 30 min"), (12_000, "3 h 20 min")),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    """No more figures than are meant."""
    assert words(seconds) == text
