"""What a run in virtual time has stored, and signals in the middle of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from seams.study import PassStarted

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence

    from make.machine import VirtualMachine
    from seams.study import Event

    from wattdock.store import StoredResult

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return a value that the test needs; a missing one fails the test."""
    assert value is not None
    return value


def passes(results: Sequence[StoredResult]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (stored.result.config.name, measured.restart, measured.pass_index)
        for stored in results
        if stored.result.energy
        for measured in stored.result.energy.passes
    )


def statuses(results: Sequence[StoredResult]) -> list[tuple[str, str]]:
    return [(stored.result.config.name, stored.result.status) for stored in results]


def journal(machine: VirtualMachine) -> list[dict[str, Any]]:
    [file] = machine.results.glob("studies/*/journal.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def send(number: signal.Signals, when: Callable[[Event], bool]) -> Callable[[Event], None]:
    """Return a consumer that sends a signal to this process each time `when` says so of an event."""

    def consume(event: Event) -> None:
        if when(event):
            os.kill(os.getpid(), number)

    return consume


def begins(stage: str) -> Callable[[Event], bool]:
    """Return what knows the beginning of a pass."""
    return lambda event: isinstance(event, PassStarted) and event.stage == stage
