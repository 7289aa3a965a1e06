"""How a command ends early: one line, and a documented exit code."""

import signal
import sys
from typing import NoReturn

import typer

from wattdock.errors import ExitCode


def ignore_interrupts() -> None:
    """Everything is done and stored: one more Ctrl-C would only replace the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def fail(message: str, code: ExitCode) -> NoReturn:
    """Say `message` on the error stream and leave with `code`."""
    ignore_interrupts()
    typer.echo(f"wattdock: {message}", err=True)
    sys.exit(code)
