"""Tables and lines on standard output."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Never, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from wattdock.output import harmless, one_line, unguarded
from wattdock.reports.cells import DISTURBED, MARK
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, JustifyMethod, RenderableType

# Parts of a view: tables, and lines of text that are never cut.
View: TypeAlias = "Iterable[str | RenderableType]"
UNLIMITED = 100_000
# A column of sentences becomes no narrower than this.
SHORTEST_PIECE = 12
# The heading of a column of sentences, and all headings whose texts may be wrapped.
SENTENCES = "verdict"
WRAPPED = (SENTENCES, "why", "A", "B")
# Spaces between two columns.
GAP = 2
STATUS_STYLES = {"ok": "green", "failed": "bold red", "interrupted": "magenta"}
# "12,383", "+1.20%", "0.05 [0.04, 0.06]", "4.1 ms", "–"; no dates and no folders' names.
FIGURE = re.compile(r"–|[+-]?(\d[\d.,]*(e[+-]?\d+)?|nan|inf)( ?(%|[^\W\d]{1,6}(/s)?|\?))?( [\[…±/].*)?")


class _Output(Console):
    """Writes its own control codes, and no others, to standard output."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is printed, its texts made harmless."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else harmless(text), style, control)

    def on_broken_pipe(self) -> Never:
        """Let whoever ends the command say so: the reader has gone."""
        raise BrokenPipeError


def print_view(view: View) -> None:
    """Print tables and lines in turn, as wide as the terminal or an exported `COLUMNS`; a pipe has no limit."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    out = _Output(file=unguarded(sys.stdout), highlight=False, width=None if has_width else UNLIMITED)
    for part in view:
        with nullcontext() if has_width else out.capture() as captured:
            out.print(_line(part) if isinstance(part, str | Text) else part, soft_wrap=True)
        if captured:
            # Nobody needs the spaces that fill up a table's lines.
            out.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
            out.file.flush()


def _line(text: str | Text) -> Text:
    """Return a text that may be anybody's as one line, in its styles."""
    line = Text(text) if isinstance(text, str) else text
    line.plain = one_line(line.plain)
    return line


@dataclass(frozen=True)
class Listing:
    """A table for rich to print, columns of figures at the right: no cell is broken over lines, but sentences may be.

    Columns that the terminal has no room for are left out from the right, and named below the table.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the title, the table, what is left out of it, and what the sign of disturbed results means."""
        if self.title:
            yield _line(Text(self.title, style="bold"))
        columns = list(zip(self.headings, *self.rows, strict=True))
        wrapped = [name in WRAPPED and _justify(cells) == "left" for name, *cells in columns]
        widths = [max(map(cell_len, column)) for column in columns]
        widths = [min(width, SHORTEST_PIECE) if wraps else width for wraps, width in zip(wrapped, widths, strict=True)]
        ends = list(accumulate(width + GAP for width in widths))
        fitting = max(1, sum(end - GAP <= options.max_width for end in ends))
        table = Table(box=None, pad_edge=False)
        for (name, *cells), width, wraps in zip(columns[:fitting], widths, wrapped, strict=False):
            how: Any = {"justify": _justify(cells), "min_width": width, "no_wrap": not wraps, "overflow": "fold"}
            table.add_column(_line(name), **how)
        for row in self.rows:
            styles = (STATUS_STYLES.get(cell.removesuffix(f" {MARK}"), "") for cell in row)
            table.add_row(*(_line(Text(cell, style=style)) for cell, style in zip(row[:fitting], styles, strict=False)))
        yield table
        if left_out := self.headings[fitting:]:
            yield _line(f"no room here for {listed(left_out)}; --json has every column")
        if any(cell.endswith(MARK) for row in self.rows for cell in row[:fitting]):
            yield _line(DISTURBED)


def _justify(cells: Sequence[str]) -> JustifyMethod:
    """Return where a column's cells stand: figures at the right."""
    return "right" if cells and all(map(FIGURE.fullmatch, cells)) else "left"


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Return names with their values, a line each or more where a value is longer than what is left of a line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(_line(name), _line(value))
    return table
