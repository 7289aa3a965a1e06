"""How a command ends early: one line, and a documented exit code."""

import difflib
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from wattdock.errors import ConfigError, ExitCode, WattdockError
from wattdock.output import say
from wattdock.text import expected, json_text, nearest

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult


# As difflib's ratio: options less alike than this mean something else.
ALIKE = 0.8


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
    """Return typer's error about the command line as one line: the value, the nearest valid name, where to read on."""
    message = " ".join(error.format_message().split())
    near = None
    # Typer leaves out the value that it refuses; pydantic, which checks it for typer, has it.
    if hasattr(error.__cause__, "errors"):
        [problem, *_] = error.__cause__.errors()
        reason = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
        value, reason = str(problem["input"]), reason.removeprefix("Input ")
        if wanted := expected(problem):
            shown = repr(value) if problem["type"].endswith("parsing") else value
            several = "; for several, write a study with `sweep:`" if "," in value else ""
            message = f"{error.param.opts[0]}: {wanted}, not {shown}{several}"
        else:
            text = f"{error.param.get_error_hint()} {value} {reason.removeprefix(repr(value)).lstrip()}"
            message = text.replace("'", "")
        near = nearest(value, re.findall(r"'(.+?)'", reason.partition("is not one of ")[2]))
    elif hasattr(error, "possibilities"):
        [near] = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=ALIKE) or [None]
        message = error.message + ("" if near else _instead(error.option_name, error.ctx))
    elif "extra argument" in message and any(param.name == "where" for param in error.ctx.command.params):
        message += ". a condition is written --where CONDITION"
    sentences = [
        re.sub("^[A-Z](?=[a-z])", lambda letter: letter[0].lower(), part) for part in message.rstrip(".").split(". ")
    ]
    if near:
        sentences.append(f"did you mean {near!r}?")
    line = "; ".join(sentences)
    command = error.ctx.command_path if error.ctx else "wattdock"
    return f"{line}{'' if line.endswith('?') else ';'} see `{command} --help`"


def _instead(option: str, context: Any) -> str:
    """Return how the command takes an argument that was written as an option, or a setting of the engine's own."""
    name = option.lstrip("-").replace("-", "_")
    if any(param.name == name and param.param_type_name == "argument" for param in context.command.params):
        return f". {name} stands without {option}: `{context.command_path} {name.upper()}`"
    takes_settings = {"--set", "--batch-size"} <= {name for each in context.command.params for name in each.opts}
    # A server that runs already takes no settings.
    if not takes_settings or any(word.startswith("--url") for word in sys.argv):
        return ""
    from wattdock.config import WorkloadSpec

    if name in WorkloadSpec.model_fields:
        return f". write --set workload.{name}=VALUE"
    backend = next(iter(re.findall(r" --backend[ =](\w+)", " ".join(sys.argv))), "BACKEND")
    return f". a setting of the engine's own is written --set {backend}.{name}=VALUE"


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
