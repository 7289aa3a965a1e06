"""Mark what a program does, and how much work it did, so that `wattdock measure` can say what each of it cost.

    from wattdock_spans import span, step, work

    with span("epoch"):
        for batch in batches:
            train(batch)
            step()
            work(samples=len(batch))

Where the environment variable WATTDOCK_SPANS names a folder at the import, each process appends lines of JSON to a file
of its own there, a forked child too; elsewhere every call does nothing. Whatever happens to that file, no call raises,
and a process prints at most one warning. A process that is killed loses its last half second. Nothing here waits for a
GPU: before a span ends, the program synchronises. Standard library only; knows nothing of wattdock.

A file holds, one JSON array a line, with times of CLOCK_MONOTONIC in nanoseconds (a full disk may tear the last line):

    ["process", 1, pid, rank or null, begin]      first; 1 is the version of this form
    ["span", name, begin, end, n]
    ["work", at, {unit: count, …}]
    ["step", at, n]
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path
from time import monotonic_ns
from typing import Any, TypeVar

# How often the thread writes: a killed process may lose half a second, and a write takes a moment.
FLUSH_S = 0.25
# Launchers' names for a process's number among all; torchrun's comes first, as Slurm may have started it.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
_json = json.JSONEncoder(separators=(",", ":")).encode


class span:  # noqa: N801 # reads like a statement
    """A named stretch of time: a `with` block, or each call of the function that it decorates.

    Args:
        name: Its kind, as "epoch"; spans may lie within each other.
        n: How many of this kind it holds: 100 for a block of a hundred steps.

    Raises:
        TypeError: It decorates without a name: `@span`.
    """

    __slots__ = ("_begins_ns", "_n", "_name")

    def __init__(self, name: str, n: float = 1) -> None:
        if callable(name):
            raise TypeError('a span needs a name: @span("step")')
        self._name, self._n = str(name), n
        # One object may be entered within itself.
        self._begins_ns: list[int] = []

    def __enter__(self) -> span:
        self._begins_ns.append(monotonic_ns())
        return self

    def __exit__(self, *_: object) -> None:
        # A forked child may leave its parent's span.
        if (begin_ns := self._begins_ns.pop()) >= _log.begun_ns:
            _log.add(("span", self._name, begin_ns, monotonic_ns(), _number(self._n)))

    def __call__(self, function: Wrapped) -> Wrapped:
        """Return the function with a span around each call; a coroutine's lasts until the coroutine has returned."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with span(self._name, self._n):
                return function(*args, **kwargs)

        async def wait(*args: Any, **kwargs: Any) -> Any:
            with span(self._name, self._n):
                return await function(*args, **kwargs)

        return functools.wraps(function)(wait if inspect.iscoroutinefunction(function) else call)  # type: ignore


def work(**counts: float) -> None:
    """Add to the work that this process has done, by unit: `work(samples=64)`; the work of all processes adds up."""
    numbers = {unit: number for unit, count in counts.items() if (number := _number(count)) is not None}
    _log.add(("work", monotonic_ns(), numbers or None))


def step(n: float = 1) -> None:
    """Say that this process has done `n` more steps; every rank of a common step says so."""
    _log.add(("step", monotonic_ns(), _number(n)))


def _number(value: Any) -> int | float | None:
    """Return a count as JSON has it, also of an array or a tensor of one element; None where it is no finite number."""
    # Beyond a float's range Python may refuse to print an integer, too.
    if type(value) is int and -(2**63) < value < 2**63:
        return value
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        if isfinite(number := float(value)):
            if not number.is_integer():
                _log.warn(f"a count of {number:g} is not whole, and fails the measurement; count in a smaller unit")
            return int(number) if number.is_integer() else number
    _log.warn(f"a count of type {type(value).__name__} is no finite number; it is left out")
    return None


class _Log:
    """This process's file, and the thread that writes it; both begin with the first event.

    Attributes:
        add: Takes an event: `_begin`, then the buffer's `append`; `_write` where no thread can be.
        begun_ns: When the process began, or this module in it.
    """

    def __init__(self) -> None:
        # Tuples as their lines have them; those whose last item is None have no line.
        self._events: deque[Any] = deque()
        self._folder, self._warned = os.environ.get("WATTDOCK_SPANS", ""), False
        self.add: Callable[..., object] = self._begin if self._folder else _ignore
        self.begin_child()

    def begin_child(self) -> None:
        """Forget, in a new process, its parent's file, thread, lock and events."""
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None
        self.begun_ns, self._file = monotonic_ns(), Path()
        self._events.clear()
        self.add = _ignore if self.add == _ignore else self._begin

    def _begin(self, event: Any) -> None:
        with self._lock:
            # What a signal's handler marks meanwhile waits for the header.
            self.add = self._events.append
            if not self._file.name:
                self._file = Path(self._folder, f"{os.getpid()}-{self.begun_ns}.jsonl")
                rank = next((int(n) for name in RANKS if (n := os.environ.get(name, "")).isdecimal()), None)
                self._events.appendleft(("process", 1, os.getpid(), rank, self.begun_ns))
                # A child by fork ends without `atexit`, unless Python is recent.
                if util := sys.modules.get("multiprocessing.util"):
                    util.Finalize(None, self.stop, (True,), exitpriority=0)
            self._write(event)
            if self._thread is None and self.add != _ignore:
                self._ended = threading.Event()
                thread = threading.Thread(target=self._keep_writing, args=(self._ended,), daemon=True)
                # There is none to be had where the interpreter ends, or where a limit is reached.
                self.add = self._write
                with suppress(RuntimeError):
                    thread.start()
                    self._thread, self.add = thread, self._events.append

    def _keep_writing(self, ended: threading.Event) -> None:
        while self.add != _ignore and not ended.wait(FLUSH_S):
            if self._events:
                self._write()

    def stop(self, is_end: bool = False) -> None:
        """Write everything, and end the thread: until the next event, or for good where the interpreter ends."""
        if thread := self._thread:
            self._thread, self.add = None, self._write if is_end else self._begin
            self._ended.set()
            # A file system that hangs must not hold the program.
            thread.join(timeout=1)
            self._write()

    def _write(self, *last: Any) -> None:
        with self._lock:
            self._events.extend(last)
            events: list[Any] = []
            # A signal's handler may take some meanwhile.
            with suppress(IndexError):
                events.extend(self._events.popleft() for _ in range(len(self._events)))
            kept = [event for event in events if event[-1] is not None]
            # Several times as fast as one by one; no name's own text can look like this, as its quotes are escaped.
            lines = re.sub(r'\],\["(?=[a-z])', ']\n["', _json(kept)[1:-1] + "\n" * bool(kept))
            try:
                # Opened anew, as a program that becomes a daemon closes all files that it did not open.
                with self._file.open("ab") as file:
                    file.write(lines.encode())
            except OSError as error:
                self.warn(f"cannot write {self._file} ({error.strerror}): spans and work are no longer recorded")
                self.add, self._thread = _ignore, None
                self._events.clear()

    def warn(self, text: str) -> None:
        """Print a line, once, where anything is recorded."""
        if self.add != _ignore and not self._warned:
            self._warned = True
            with suppress(AttributeError, OSError, ValueError):
                sys.stderr.write(f"wattdock_spans: {text}\n")


def _ignore(*_: object) -> None:
    """Take an event where nothing is recorded."""


_log = _Log()
atexit.register(_log.stop, True)
# Windows has no fork.
getattr(os, "register_at_fork", dict)(before=_log.stop, after_in_child=_log.begin_child)
