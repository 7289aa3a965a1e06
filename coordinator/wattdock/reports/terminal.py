"""Text on standard output: tables, lines, JSON of the same objects; and figures as text."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import accumulate, takewhile
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from wattdock.output import harmless, one_line, unguarded
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, JustifyMethod, RenderableType

    from wattdock.analysis import statistics
    from wattdock.store import Row

# What a view of an object is made of: tables, and lines of text that are never cut.
View: TypeAlias = "Iterable[str | RenderableType]"
UNLIMITED = 100_000
# A column of texts becomes no narrower than this.
SHORTEST_PIECE = 12
NOTHING = "–"
# Half of an interval ÷ its figure; what is narrower comes of rounding.
NO_SPREAD = 1e-6
# Behind the name of a result that others disturbed; the heading of a column of sentences; between columns.
MARK, SENTENCES, GAP = "†", "verdict", 2
DISTURBED = f"{MARK} Others used its CPUs or GPUs meanwhile."
STATUS_STYLES = {"ok": "green", "failed": "bold red", "interrupted": "magenta"}
# "12,383", "+1.20%", "0.05 [0.04, 0.06]", "4.1 ms", "–"; no dates and no folders' names.
FIGURE = re.compile(r"–|[+-]?(\d[\d.,]*(e[+-]?\d+)?|nan|inf)( ?(%|[^\W\d]{1,6}(/s)?|\?))?( [\[…±/].*)?")
# An engine's settings can be thousands of characters that differ in a folder's name.
LONG, LEAD = 100, 30


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


def to_plain(value: Any) -> Any:
    """Return any of our objects as JSON has it, under the names of its fields."""
    if hasattr(value, "to_pylist"):
        return value.to_pylist()
    if hasattr(value, "as_json"):
        return value.as_json()
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, dict):
        return {key: to_plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set):
        return [to_plain(child) for child in value]
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value


@dataclass(frozen=True)
class Sheet:
    """A table for rich to print; columns of figures stand at the right.

    Where the terminal is too narrow texts are wrapped, figures never.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the title and the table."""
        if self.title:
            yield _line(Text(self.title, style="bold"))
        table = Table(box=None, pad_edge=False)
        for name, *cells in zip(self.headings, *self.rows, strict=True):
            justify, longest = _justify(cells), max(map(len, [name, *cells]))
            min_width = longest if justify == "right" else min(longest, SHORTEST_PIECE)
            table.add_column(_line(name), justify=justify, min_width=min_width, overflow="fold")
        for row in self.rows:
            table.add_row(*map(_line, row))
        yield table


class Listing(Sheet):
    """A table of results for rich to print: no cell is broken over lines, but sentences may be.

    Columns that the terminal has no room for are left out from the right, and named below the table.
    """

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the title, the table, what is left out of it, and what the sign of disturbed results means."""
        if self.title:
            yield _line(Text(self.title, style="bold"))
        columns = list(zip(self.headings, *self.rows, strict=True))
        widths = [max(map(cell_len, column)) for column in columns]
        if SENTENCES in self.headings:
            at = self.headings.index(SENTENCES)
            widths[at] = max(cell_len(word) for cell in columns[at] for word in cell.split() or [""])
        ends = list(accumulate(width + GAP for width in widths))
        fitting = max(1, sum(end - GAP <= options.max_width for end in ends))
        table = Table(box=None, pad_edge=False)
        for (name, *cells), width in zip(columns[:fitting], widths, strict=False):
            table.add_column(_line(name), justify=_justify(cells), min_width=width, no_wrap=name != SENTENCES)
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


def number(value: float | None, form: str = ".4g") -> str:
    """Return a number in a format, or a dash for what was not measured."""
    return NOTHING if value is None else format(value, form)


def cell_text(value: Any, form: str = "") -> str:
    """Return a value of a table as people read it.

    Args:
        form: As `store.Column` has it.
    """
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if form == "seconds":
        return seconds_text(value)
    return Path(value).name if form == "file name" else format(value, form)


def row_cells(row: Row, names: Sequence[str]) -> dict[str, str]:
    """Return some columns of a row of the table of results as people read them; a sign marks a disturbed one."""
    from wattdock.store import COLUMNS

    cells = {name: cell_text(getattr(row, name), COLUMNS[name].form) for name in names}
    sign_at = next((name for name in ("status", "name") if name in cells), None)
    return cells | ({sign_at: marked(cells[sign_at], row.disturbed)} if sign_at else {})


def marked(label: str, disturbed: object) -> str:
    """Return the name or status of what others may have disturbed, with a sign behind it where they did."""
    return f"{label} {MARK}" if disturbed else label


def figure_text(figure: statistics.Figure | None, form: str = ".4g") -> str:
    """Return "0.0530 [0.0521, 0.0539]"."""
    if figure is None:
        return NOTHING
    if figure.interval is None:
        return format(figure.value, form)
    return f"{figure.value:{form}} {figure.interval:{form}}"


def plus_minus(figure: statistics.Figure | None, form: str) -> str:
    """Return "0.13501 ± 0.00055", both to the half width's second digit; "0.05 [0, 0.14]" where it ends at 0.

    Args:
        form: Format of the value where there is no half width to round to.
    """
    if figure is None or figure.interval is None:
        return figure_text(figure, form)
    low, high = figure.interval
    half = (high - low) / 2
    if low <= 0 or half <= NO_SPREAD * figure.value:
        return figure_text(figure, form)
    places = max(0, 1 - floor(log10(half)))
    return f"{figure.value:,.{places}f} ± {half:,.{places}f}"


def seconds_text(value_s: float | None) -> str:
    """Return milliseconds below one second, else seconds."""
    if value_s is None:
        return NOTHING
    return f"{value_s * 1e3:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"


def excerpts_at_difference(texts: Sequence[str]) -> list[str]:
    """Return texts whole, or, where one is long, cut around the first place where they differ."""
    if max(map(len, texts), default=0) <= LONG:
        return list(texts)
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)))
    start = max(0, alike - LEAD)
    cut = slice(start, start + LONG)
    return [("…" if start else "") + text[cut] + ("…" if len(text) > cut.stop else "") for text in texts]
