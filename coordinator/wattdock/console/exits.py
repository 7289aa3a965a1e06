"""How a command ends early: one line, and a documented exit code."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from wattdock.errors import ConfigError, ExitCode, WattdockError
from wattdock.output import say
from wattdock.text import json_text

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on: everything is stored, and an interrupt would only replace the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def fail(message: str, code: ExitCode, error: WattdockError | None = None) -> NoReturn:
    """Print `message` on the error stream, or an object with `--json`, and end with `code`."""
    ignore_interrupts()
    _flush_or_discard(sys.stdout)
    # All mistakes of a file are one error, with a line for each.
    lines = [f"wattdock: {line}" for line in (message.split("\n") if isinstance(error, ConfigError) else [message])]
    if "--json" in sys.argv:
        what, remedy, cause = (error.what, error.remedy, error.cause) if error else (message, "", None)
        lines = [json_text({"error": {"what": what, "remedy": remedy, "cause": cause}}, ascii_only=False)]
    with suppress(OSError):
        for line in lines:
            say(line, err=True)
    _flush_or_discard(sys.stderr)
    sys.exit(code)


def usage_line(error: Any) -> str:
    """Return typer's error about the command line as one line, with the value that was seen and where to read on."""
    message = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    # Typer leaves out the value that it refuses; pydantic, which checks it for typer, has it.
    if hasattr(error.__cause__, "errors"):
        message += f", not {error.__cause__.errors()[0]['input']!r}"
    if hasattr(error, "possibilities") and any("--set" in each.opts for each in error.ctx.command.params):
        message += "; a setting without a flag is written --set NAME=VALUE"
    command = error.ctx.command_path if error.ctx else "wattdock"
    return f"{message[:1].lower()}{message[1:]}; see `{command} --help`"


def exit_if_failed(results: Iterable["ExperimentResult"]) -> None:
    """Print a line for each error, and end with the exit code of the first; an interrupt comes after other errors."""
    errors = [result.error for result in results if result.error]
    errors.sort(key=lambda error: error.exit_code == ExitCode.INTERRUPTED)
    for line in dict.fromkeys(f"wattdock: {error.stage}: {error.message}" for error in errors):
        say(line, err=True)
    if errors:
        raise typer.Exit(errors[0].exit_code)


@contextmanager
def interruptible(consequence: Callable[[], str]) -> Iterator[None]:
    """Report Ctrl-C in the block, and its consequence: typer would end the command without a word."""
    try:
        yield
    except KeyboardInterrupt:
        fail(f"interrupted; {consequence()}", ExitCode.INTERRUPTED)


def _flush_or_discard(stream: TextIO) -> None:
    """Write what the stream has buffered, or discard it where nobody reads or the disk is full."""
    try:
        stream.flush()
    except OSError:
        # Python would flush again when it ends, and replace the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_is_gone() -> bool:
    """Whether the other end of standard output or of the error stream was closed."""
    poll = select.poll()
    for stream in (1, 2):
        # No event is asked for: errors and hang-ups are always reported.
        poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def exit_by_sigpipe() -> NoReturn:
    """End silently by SIGPIPE, as other programs do in `wattdock estimate | head`.

    Python ignores SIGPIPE until here, so that a reader who goes away cannot end a measurement.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    # The first process of a container does not receive its own signals.
    os._exit(128 + signal.SIGPIPE)
