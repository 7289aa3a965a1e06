"""What happens while a study is measured, as typed events.

The loop and its sessions emit them to one callable; a terminal, JSON lines or a page turn them into something to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Event:
    """Something that happened."""


Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Note(Event):
    """Something to know that has no event of its own, such as a decision, a download or a warning."""

    text: str


@dataclass(frozen=True)
class StudyStarted(Event):
    """The study has its folder.

    Attributes:
        resumed: An earlier run began it; None where nothing was asked to be resumed.
        done: Experiments that were finished before.
        time_left: In words, without starting runners.
    """

    study_id: str
    resumed: bool | None
    done: int
    passes_left: int
    time_left: str


@dataclass(frozen=True)
class IdleStarted(Event):
    """The GPUs are watched without work for `duration_s` seconds, or longer where they are not at rest."""

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
    """The runner begins with one experiment; `restart` counts from 1."""

    experiment: str
    restart: int
    passes_left: int
    time_left: str


@dataclass(frozen=True)
class PassStarted(Event):
    """A pass has begun; `stage` names it, such as "warm-up 1/1" or "pass 2/3"."""

    stage: str


@dataclass(frozen=True)
class TokensSeen(Event):
    """The pass goes on: output tokens so far, seconds since it began, and watts per GPU UUID where they are known."""

    stage: str
    output_tokens: int
    elapsed_s: float
    watts: Mapping[str, float | None]


@dataclass(frozen=True)
class PassFinished(Event):
    """A measured pass is over."""

    stage: str
    output_tokens: int
    duration_s: float


@dataclass(frozen=True)
class WarmUpFinished(Event):
    """A steady warm-up is over; `drifting` is what was not steady when its cap came."""

    passes: int
    duration_s: float
    drifting: tuple[str, ...]


@dataclass(frozen=True)
class ResultStored(Event):
    """An experiment has its result, finished or not."""

    experiment: str
    experiment_id: str
    status: str
    folder: Path


def notes(emit: Emit) -> Callable[[str], None]:
    """Return a callable that emits a text as a `Note`, for rooms below that tell what they do in words."""
    return lambda text: emit(Note(text))
