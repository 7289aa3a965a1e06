"""Standard output as people and programs read it: no wider than the terminal, and whole where there is none.

Knows no result: it is given headings and texts.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, TYPE_CHECKING, Any, Never, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

# A pipe has no width: what is printed there is as wide as it has to be.
UNLIMITED = 100_000
# Between two columns of a table.
GAP = 2
# Words are broken into pieces no shorter than this; figures never are.
SHORTEST_PIECE = 12


class _Output(Console):
    def on_broken_pipe(self) -> Never:
        """Let whoever ends the command say so: the reader has gone."""
        raise BrokenPipeError


class _Trimmed:
    """Standard output whose lines end with their last character; rich fills them up to the widest."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r"[^\S\n]+$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def console(**options: Any) -> Console:
    """Return standard output as rich prints to it; `COLUMNS`, where it is exported, is its width."""
    if sys.stdout.isatty():
        return _Output(**options)
    width = None if "COLUMNS" in os.environ else UNLIMITED
    return _Output(width=width, file=cast("IO[str]", _Trimmed()), **options)


@dataclass(frozen=True)
class Sheet:
    """A table for rich to print, in which nothing is ever cut.

    Where the terminal is too narrow texts are wrapped; where figures would not fit beside each other any more, each
    row is printed as lines of heading and value.

    Attributes:
        right: Headings of the columns that hold figures; they stand at the right and are not broken.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()
    title: str | None = None

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield what fits."""
        if self.title:
            yield Text(self.title, style="bold")
        columns = list(zip_longest(self.headings, *self.rows, fillvalue=""))
        breakable = [name not in self.right for name in self.headings]
        widths = column_widths(columns, breakable, room=options.max_width)
        if widths:
            yield self._beside(widths)
        else:
            yield from self._below()

    def _beside(self, widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False)
        for name, width in zip(self.headings, widths, strict=True):
            table.add_column(
                Text(name), justify="right" if name in self.right else "left", width=width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _below(self) -> Iterator[RenderableType]:
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            yield pairs([(name, value) for name, value in zip(self.headings, row, strict=False) if value])


def pairs(rows: Sequence[tuple[str, str]]) -> Table:
    """Return names with their values, a line each or more where a value is longer than what is left of a line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def column_widths(columns: Sequence[Sequence[str]], breakable: Sequence[bool], *, room: int) -> list[int] | None:
    """Return how wide each column is to be, gaps apart; None where `room` does not hold them without breaking figures.

    Args:
        columns: Every text of each column, its heading too.
        breakable: For each column whether its words may be broken.
        room: Characters.
    """
    wanted = [_longest(text.splitlines() for text in column) for column in columns]
    least = [_longest(text.split() for text in column) for column in columns]
    least = [min(one, SHORTEST_PIECE) if may else one for one, may in zip(least, breakable, strict=True)]
    room -= GAP * (len(columns) - 1)
    if sum(wanted) <= room:
        return wanted
    if sum(least) > room:
        return None
    widths, spare = least, room - sum(least)
    # Those that lack little get all of it, so that only the longest texts are wrapped.
    lacking = sorted(range(len(widths)), key=lambda at: wanted[at] - least[at])
    for left, at in zip(range(len(lacking), 0, -1), lacking, strict=True):
        more = min(wanted[at] - least[at], spare // left)
        widths[at], spare = widths[at] + more, spare - more
    return widths


def _longest(pieces: Iterator[Sequence[str]]) -> int:
    # A column of no width would be left out.
    return max(1, *(cell_len(piece) for some in pieces for piece in some), 1)
