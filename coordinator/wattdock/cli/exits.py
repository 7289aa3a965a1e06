"""How a command ends early: one line, and a documented exit code."""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

import typer

from wattdock.errors import ExitCode


def ignore_interrupts() -> None:
    """Everything is done and stored: one more Ctrl-C would only replace the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def fail(message: str, code: ExitCode) -> NoReturn:
    """Say `message` on the error stream and leave with `code`."""
    ignore_interrupts()
    _let_go(sys.stdout)
    with suppress(OSError):
        typer.echo(f"wattdock: {message}", err=True)
    _let_go(sys.stderr)
    sys.exit(code)


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """Say so, and what stays, where Ctrl-C ends what is inside: Typer would turn it into a silent exit."""
    try:
        yield
    except KeyboardInterrupt:
        fail(f"interrupted; {said}", ExitCode.INTERRUPTED)


def _let_go(stream: TextIO) -> None:
    """Write what is held back, or forget it where nobody reads or there is no room."""
    try:
        stream.flush()
    except OSError:
        # Python would try once more at its end, and say so with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_is_gone() -> bool:
    """Whether nobody reads standard output or the error stream any more, so that a broken pipe is one of theirs."""
    poll = select.poll()
    for stream in (1, 2):
        # Nothing is waited for; that the other end was closed is told all the same.
        poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def exit_by_sigpipe() -> NoReturn:
    """End as programs do whose reader has gone, as in `wattdock estimate | head`: silently, by SIGPIPE.

    Python ignores that signal, and with reason: while something is measured no reader may end it.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    # The first process of a container does not hear its own signals.
    os._exit(128 + signal.SIGPIPE)
