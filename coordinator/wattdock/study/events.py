"""Typed events of a study that is measured.

The run emits them to one callable; a terminal, JSON lines (`logged`) or a page show them. `RunState` is their sum.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (pydantic looks it up)
from typing import Any

from pydantic import TypeAdapter

from wattdock.clock import Clock
from wattdock.opening import open_regular
from wattdock.secrets import withheld_values
from wattdock.text import json_text
from wattdock.values import require_64_bits

# Name of the file of a run's events, for readers elsewhere.
EVENTS = "events.jsonl"
# Shortest time between two lines about the tokens of a pass: more would fill the file, and readers look once a second.
BEAT_S = 0.9


@dataclass(frozen=True)
class Event:
    """Something that happened."""


Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Note(Event):
    """A line for people that has no event of its own, such as a decision, a download or a warning."""

    text: str


@dataclass(frozen=True)
class StopAsked(Event):
    """A first Ctrl-C has come: the run stops after the pass that is under way."""


@dataclass(frozen=True)
class UnexpectedError(Event):
    """A bug that must not cost what was measured: Python's traceback, of many lines."""

    traceback: str


@dataclass(frozen=True)
class StudyStarted(Event):
    """The study has its folder.

    Attributes:
        resumed: Whether an earlier run began the study; None without `--resume`.
        done: Experiments that earlier runs have finished.
        passes_left, passes: Measured passes of the study that are left, and all of them.
        time_left: How long the passes left take, in words and without starting runners.
    """

    study_id: str
    resumed: bool | None
    done: int
    passes_left: int
    passes: int
    time_left: str


@dataclass(frozen=True)
class IdleStarted(Event):
    """The GPUs are metered without work for `duration_s` seconds, or longer until they are idle."""

    span: str
    duration_s: float


@dataclass(frozen=True)
class RunnerReady(Event):
    """The runner answers."""

    framework: str
    framework_version: str
    python_version: str


@dataclass(frozen=True)
class Loading(Event):
    """The runner loads the model; `stage` is empty at the beginning."""

    model: str
    stage: str = ""


@dataclass(frozen=True)
class RestartStarted(Event):
    """The runner begins to serve an experiment.

    Attributes:
        restart: Counts from 1.
        passes_left, passes, time_left: Of the study, as in `StudyStarted`.
        gpus: UUIDs of the GPUs that the runner was given; empty on a CPU.
    """

    experiment: str
    restart: int
    restarts: int
    passes_left: int
    passes: int
    time_left: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class PassStarted(Event):
    """A pass has begun, and goes on until each limit that it has is reached.

    Attributes:
        stage: Its name, such as "warm-up 1/1" or "pass 2/3".
        least_s: Seconds that it lasts at least; None without that limit.
        most_tokens: Output tokens of the requests asked for, if none ends early; None where only time ends the pass.
    """

    stage: str
    least_s: float | None = None
    most_tokens: float | None = None


@dataclass(frozen=True)
class TokensSeen(Event):
    """The pass goes on.

    Attributes:
        output_tokens: Output tokens so far; on PyTorch an upper bound where sequences end before their limit, since
            their padding is seen after the pass.
        elapsed_s: Seconds since the pass began.
        watts: Latest power of every GPU that is metered, by UUID; None where it is unknown.
        unit: What is counted, in the plural: a command's work is no tokens.
    """

    stage: str
    output_tokens: int
    elapsed_s: float
    watts: Mapping[str, float | None]
    unit: str = "tokens"


@dataclass(frozen=True)
class OutputSeen(Event):
    """A command of the user's own has printed something; its log has it, too."""

    text: str


@dataclass(frozen=True)
class PassFinished(Event):
    """A measured pass is over.

    Attributes:
        cpu_others_share: Share of the runner's CPUs that others used, 0 to 1; None where unknown.
    """

    stage: str
    output_tokens: int
    duration_s: float
    cpu_others_share: float | None
    unit: str = "tokens"


@dataclass(frozen=True)
class ExperimentFailed(Event):
    """A restart of an experiment has failed; its result will say so.

    Attributes:
        kind: Class of the error, for instance "RunnerError".
        cause: The failure's `errors.Cause`; None where it is unknown.
    """

    experiment: str
    stage: str
    kind: str
    message: str
    cause: str | None


@dataclass(frozen=True)
class StudyLeftUnfinished(Event):
    """The run ends before all experiments were begun."""

    not_begun: int


@dataclass(frozen=True)
class ResultStored(Event):
    """The result of an experiment, complete or not, is on disk."""

    experiment: str
    experiment_id: str
    status: str
    folder: Path


def as_line(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object's values: its name, the time in UTC, and what it holds, without secrets."""
    values = dataclasses.asdict(event)
    # TokensSeen comes several times a second, and holds wattdock's own words only.
    values = values if isinstance(event, TokensSeen) else withheld_values(values)
    return {"event": type(event).__name__, "at_utc": Clock().now_utc(), **values}


def from_line(line: Any) -> Event | None:
    """Return the event that `as_line` wrote; None where another version, or another program, wrote something else."""
    if not isinstance(line, dict):
        return None
    values = {name: value for name, value in line.items() if name not in ("event", "at_utc")}
    try:
        return require_64_bits(_adapters()[line["event"]].validate_python(values))
    except (KeyError, TypeError, ValueError):
        return None


@functools.cache
def _adapters() -> dict[str, TypeAdapter[Event]]:
    return {kind.__name__: TypeAdapter(kind) for kind in Event.__subclasses__()}


def notes(emit: Emit) -> Callable[[str], None]:
    """Return a callable that emits a line as a `Note`, for rooms that report in words."""
    return lambda text: emit(Note(text))


@contextmanager
def logged(path: Path, emit: Emit) -> Iterator[Emit]:
    """Yield a function that writes an event to a new file at `path`, and passes it on.

    What cannot be written is left out, since nothing measured needs it.
    """
    file, last_beat_s = None, 0.0
    with suppress(OSError):
        path.unlink(missing_ok=True)
        file = os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o644), "wb", buffering=0)

    def log(event: Event) -> None:
        nonlocal last_beat_s
        is_beat, now_s = isinstance(event, TokensSeen), time.monotonic()
        if file and not isinstance(event, OutputSeen) and not (is_beat and now_s - last_beat_s < BEAT_S):
            last_beat_s = now_s if is_beat else last_beat_s
            with suppress(OSError):
                file.write(json_text(as_line(event), default=str).encode() + b"\n")
        emit(event)

    with file or nullcontext():
        yield log
