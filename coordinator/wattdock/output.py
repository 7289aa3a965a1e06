"""Standard output and the error stream: whatever is printed steers no terminal.

Names, errors, prompts and generated text may be anybody's. Each character of them that would move a terminal's cursor,
give it commands or change the order of what is read is shown as a mark instead, whoever prints it.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from wattdock.secrets import withheld
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARK = "\N{REPLACEMENT CHARACTER}"
# Not printable, and steers nothing: a tab, and what joins letters or emoji.
HARMLESS = "\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
# Categories of Unicode: spaces, and the bytes of a file's name that are no text, which a stream writes as escapes.
HARMLESS_KINDS = ("Zs", "Cs")
MOST_CHARACTERS = 1_600


def harmless(text: str) -> str:
    """Return a text of any lines with a mark for every character that would steer a terminal; as long as before.

    Marked are control characters (ESC, C1, BEL, backspace, carriage return, …), overrides of the direction of writing,
    and whatever else is not to be seen.
    """
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def one_line(text: str) -> str:
    """Return a harmless text with its line feeds as spaces, so that no name forges a line; as long as before."""
    return harmless(text.replace("\n", " "))


def _shown(character: str) -> str:
    kind = unicodedata.category(character)
    return character if character.isprintable() or character in HARMLESS or kind in HARMLESS_KINDS else MARK


class _Guarded:
    """A stream of text that shows what would steer a terminal; the error stream, which logs keep, without secrets."""

    def __init__(self, stream: TextIO, guard: Callable[[str], str]) -> None:
        self.unguarded, self._guard = stream, guard

    def write(self, text: str) -> int:
        return self.unguarded.write(self._guard(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def guard_output() -> None:
    """Make both streams harmless for all that writes to them from now on: also libraries, warnings and tracebacks."""
    for name in ("stdout", "stderr"):
        # None where the caller closed it: `wattdock … >&-`.
        stream = unguarded(getattr(sys, name) or Path(os.devnull).open("w"))  # noqa: SIM115 (for as long as the process)
        # A terminal that cannot show a character must not cost the result.
        cast("Any", stream).reconfigure(errors="backslashreplace")
        shown = harmless if name == "stdout" else lambda text: harmless(withheld(text, keep_paths=True))
        setattr(sys, name, _Guarded(stream, shown))


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream that writes control codes as they are: for our own."""
    return cast("TextIO", getattr(stream, "unguarded", stream))


def say(line: str, *, err: bool = False) -> None:
    """Print one line, made harmless, and flush it to the reader.

    Args:
        err: On the error stream, where the middle of a very long line is left out: a value in it may be megabytes.
    """
    if err and len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS // 2]} … {line[-MOST_CHARACTERS // 2 :]}"
    _write(sys.stderr if err else sys.stdout, one_line(line) + "\n")


def print_json(value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> None:
    """Print `value` as `json_text` writes it, in ASCII, and flush it to the reader."""
    _write(sys.stdout, json_text(value, indent=indent, default=default) + "\n")


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
