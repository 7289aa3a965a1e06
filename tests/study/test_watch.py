"""What a run's events add up to, and what another process learns of it from its study's folder."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from seams.study import EVENTS, LOCK, RECORDS, logged

from wattdock.files import locked
from wattdock.study import RunState, RunWatch, events

BEGUN = (
    events.StudyStarted("s-1", None, 0, 2, 2, "9 s"),
    events.RestartStarted("batch 8", 1, 3, 2, 2, "9 s", ("GPU-1",)),
    events.IdleStarted("idle-loaded", 30),
    events.PassStarted("pass 1/2", 10.0, 4000),
)


def beat(elapsed_s: float, tokens: int, watts: float | None) -> events.TokensSeen:
    """Return a heartbeat of a run that has the first of two GPUs."""
    return events.TokensSeen("pass 1/2", tokens, elapsed_s, {"GPU-1": watts, "GPU-2": 900.0})


def state_after(*happened: events.Event) -> RunState:
    """Return the state after these, one a second from 100 s on."""
    state = RunState()
    for at_s, event in enumerate(happened, 100):
        state.on(event, at_s)
    return state


def test_a_pass_under_way_has_a_rate_joules_of_its_gpus_and_a_time_left() -> None:
    """100 J and 300 J of two seconds for 1,000 tokens; a fifth of the time and a quarter of the tokens are done."""
    state = state_after(*BEGUN, beat(1.0, 500, 100.0), beat(2.0, 1000, 300.0))
    assert (state.experiment, state.stage, state.restarts) == ("batch 8", "pass 1/2", 3)
    assert (state.tokens_per_s, state.power_w, state.joules_per_token) == (500.0, 300.0, 0.4)
    assert (state.share, state.left_s) == (0.2, 8.0)
    assert [(part.name, part.begin_s, part.end_s) for part in state.parts] == [
        ("idle-loaded", 102, 103),
        ("pass 1/2", 103, None),
    ]


def test_what_is_unknown_stays_unknown_and_what_has_ended_is_no_pass() -> None:
    """No power of the GPU in use, no limit of the pass; then a failure and a stored result."""
    unknown = state_after(*BEGUN[:3], events.PassStarted("pass 1/2"), beat(1.0, 500, None))
    assert (unknown.power_w, unknown.joules_per_token, unknown.share, unknown.left_s) == (None,) * 4
    gap = state_after(*BEGUN, beat(1.0, 500, 100.0), beat(2.0, 900, None), beat(3.0, 1300, 100.0))
    assert (gap.joules_per_token, gap.power_w) == (None, 100.0)
    ended = state_after(
        *BEGUN,
        beat(1.0, 500, 100.0),
        events.PassFinished("pass 1/2", 4100, 10.5, None),
        events.ExperimentFailed("batch 8", "pass 2/2", "RunnerError", "it died", None),
        events.ResultStored("batch 8", "ab", "failed", Path("results/x")),
    )
    assert (ended.stage, ended.passes_left, ended.output_tokens) == ("", 1, 4100)
    assert (list(ended.failures), ended.stored) == (["batch 8: it died"], {"failed": 1})
    assert ended.parts[-1].end_s == 105
    # It was told for two passes.
    assert (ended.time_left, ended.share, ended.power_w) == ("", None, None)
    another = state_after(*BEGUN, beat(1.0, 500, 100.0), events.RestartStarted("batch 9", 1, 1, 1, 2, "", ("GPU-1",)))
    assert (another.tokens_per_s, another.joules_per_token, another.left_s) == (None, None, None)


@pytest.mark.parametrize("kind", events.Event.__subclasses__())
def test_every_kind_of_event_comes_back_from_its_line(kind: type[events.Event]) -> None:
    """Through JSON."""
    values: dict[str, Any] = {"tuple[str, ...]": ["a"], "str": "a", "int": 2, "float": 2.5, "bool | None": True}
    values |= {"Mapping[str, float | None]": {"GPU-1": None}, "Path": "x", "float | None": None, "str | None": None}
    line = {"event": kind.__name__, **{field.name: values[str(field.type)] for field in dataclasses.fields(kind)}}
    event = events.from_line(line)
    assert type(event) is kind
    assert events.from_line(json.loads(json.dumps(events.as_line(event), default=str))) == event


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"event": 3},
        {"event": "Nothing"},
        {"event": "PassStarted"},
        {"event": "Note", "x": 1},
        {"event": "TokensSeen", "stage": "a", "output_tokens": 10**400, "elapsed_s": 1.0, "watts": {}},
    ],
)
def test_a_line_that_is_no_event_is_none(line: dict[str, Any]) -> None:
    """Another version's, or a stranger's."""
    assert events.from_line(line) is None


def study_folder(results: Path, name: str = "20261125T000000-s-1") -> Path:
    folder = results / "studies" / name
    (folder / RECORDS).mkdir(parents=True)
    return folder


def test_another_process_sees_a_run_for_as_long_as_its_study_is_locked(tmp_path: Path) -> None:
    """Heartbeats within a second are one line; a line that is being written is read when it is whole."""
    folder, watch = study_folder(tmp_path), RunWatch(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(locked(folder / LOCK))
        log = stack.enter_context(logged(folder / RECORDS / EVENTS, lambda _: None))
        for event in (*BEGUN, beat(1.0, 500, 100.0), beat(1.1, 550, 100.0)):
            log(event)
        [run] = watch.look()
        assert (run.pid, run.is_ours, run.state.output_tokens) == (os.getpid(), True, 500)
        whole = json.dumps(events.as_line(events.PassFinished("pass 1/2", 4100, 10.5, None)))
        with (folder / RECORDS / EVENTS).open("a") as file:
            file.write(f"no json\n[1]\n{'x' * 70_000}\n{whole[:20]}")
        [run] = watch.look()
        assert run.state.stage == "pass 1/2"
        with (folder / RECORDS / EVENTS).open("a") as file:
            file.write(f"{whole[20:]}\n")
        [run] = watch.look()
        assert (run.state.stage, run.state.output_tokens) == ("", 4100)
        # A run that goes on with the study begins its events anew.
        again = stack.enter_context(logged(folder / RECORDS / EVENTS, lambda _: None))
        again(BEGUN[0])
        [run] = watch.look()
        assert run.state.output_tokens == 0
    assert watch.look() == []


def test_an_old_study_that_goes_on_is_seen_behind_many_and_from_its_new_run_s_beginning(tmp_path: Path) -> None:
    """Its name sorts last; a file with the inode of the one before it is new all the same."""
    old, watch = study_folder(tmp_path, "20250101T000000-old-1"), RunWatch(tmp_path)
    for number in range(30):
        (study_folder(tmp_path, f"20260101T000000-{number}-1") / LOCK).touch()
    with locked(old / LOCK):
        [run] = watch.look()
        run.state.on(events.ExperimentFailed("a", "load", "RunnerError", "it died", None), 1.0)
        # As if another process held it now.
        run.pid = 1
        [run] = watch.look()
        (old / RECORDS / EVENTS).write_text(json.dumps(events.as_line(BEGUN[0])) + "\n")
        [run] = watch.look()
        assert (run.pid, list(run.state.failures)) == (os.getpid(), [])


def test_what_was_appended_is_read_up_to_a_bound(tmp_path: Path) -> None:
    """A terabyte of nothing before the last event."""
    folder, watch = study_folder(tmp_path), RunWatch(tmp_path)
    with locked(folder / LOCK):
        (folder / RECORDS / EVENTS).touch()
        watch.look()
        os.truncate(folder / RECORDS / EVENTS, 1 << 40)
        with (folder / RECORDS / EVENTS).open("a") as file:
            file.write("\n" + json.dumps(events.as_line(BEGUN[0])) + "\n")
        [run] = watch.look()
        assert (run.state.passes, run.state.passes_left) == (BEGUN[0].passes, BEGUN[0].passes_left)


def test_a_stranger_s_folder_is_no_run_and_holds_nobody_up(tmp_path: Path) -> None:
    """A pipe in the file's place, a study without a lock, a folder of results that is not there."""
    pipe = study_folder(tmp_path, "2a")
    study_folder(tmp_path, "2c")
    os.mkfifo(pipe / RECORDS / EVENTS)
    with locked(pipe / LOCK):
        assert RunWatch(tmp_path).look() == []
    assert RunWatch(tmp_path / "none").look() == []
