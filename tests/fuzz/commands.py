"""Run commands and studies in this process, and tell how they ended from how they should not."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from seams.console import exits, main
from seams.study import Note
from typer.main import get_command

from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuzz.mutators import Files
    from make.machine import VirtualMachine

    from wattdock.config import Study

# The same each time, and a fifth of the time that a command takes.
built = cache(get_command)
# Of a runner that was told to.
DIED = "exited with code 70"
# What commands that did not end with 0 have said.
REFUSALS: list[str] = []


# One clear line, with the paths and the value that it names.
MAX_LINE = 2_000


class BrokenError(AssertionError):
    """A command ended otherwise than documented."""


def command(folder: Path, *words: str) -> str:
    """Run the command line in `folder` and return what it printed.

    Raises:
        BrokenError: It ended as a bug does.
    """
    written = io.BytesIO()
    out, err = (io.TextIOWrapper(buffer, write_through=True) for buffer in (io.BytesIO(), written))
    here = Path.cwd()
    os.chdir(folder)
    try:
        with (
            patch.object(sys, "argv", ["wattdock", *words]),
            patch("typer.main.get_command", built),
            patch.object(exits, "ignore_interrupts"),
            patch.object(main, "ignore_interrupts"),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main.main()
    except SystemExit as ended:
        said = written.getvalue().decode(errors="replace")
        if ended.code not in {*map(int, ExitCode)} - {ExitCode.BUG} or "Traceback" in said:
            raise BrokenError(f"{words[0]} ended with {ended.code}: {said}") from ended
        if long := [line for line in said.splitlines() if len(line) > MAX_LINE]:
            raise BrokenError(f"{words[0]} says a line of {len(long[0]):,} characters: {long[0][:300]}") from ended
        if ended.code:
            REFUSALS.append(said)
        return said
    finally:
        os.chdir(here)
    raise BrokenError("no exit")


def run_virtual(machine: VirtualMachine, what: Study, **options: Any) -> None:
    """Run a study.

    Raises:
        BrokenError: A result names a bug.
    """
    try:
        machine.run(what, **options)
    finally:
        for stored in machine.last.results:
            if stored.result.error and not stored.result.error.message.endswith(DIED):
                REFUSALS.append(stored.result.error.message)
            if stored.result.error and stored.result.error.exit_code == ExitCode.BUG:
                traces = [event.text for event in machine.emitted if isinstance(event, Note) and "Trace" in event.text]
                raise BrokenError(f"{stored.result.error.message}: {traces}")


def content_of(folder: Path) -> Files:
    """Return all files below a folder, by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def chosen(folder: Path, among: Sequence[Any]) -> Any:
    """Return one of several things to do with an input: always the same one with the same input."""
    return among[zlib.crc32(b"".join(content_of(folder).values())) % len(among)]
