"""Text on standard output: tables no wider than the terminal, lines, JSON of the same objects; and figures as text."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import takewhile
from math import floor, log10
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Never, TypeAlias, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

    from wattdock.store import Row

# What a view of an object is made of: tables, and lines of text that are never cut.
View: TypeAlias = "Iterable[str | RenderableType]"
UNLIMITED = 100_000
# Between two columns of a table.
GAP = 2
# Words are broken into pieces no shorter than this; figures never are.
SHORTEST_PIECE = 12
NOTHING = "–"
# Control characters but for line feeds and tabs.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# "12,383", "+1.20%", "0.05 [0.04, 0.06]", "4.1 ms", "–"; no dates and no folders' names.
FIGURE = re.compile(r"–|[+-]?(\d[\d.,]*(e[+-]?\d+)?|nan|inf)( ?(%|[^\W\d]{1,6}(/s)?|\?))?( [\[…±/].*)?")
# An engine's settings can be thousands of characters that differ in a folder's name.
LONG, LEAD = 100, 30


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


def print_view(view: View) -> None:
    """Print tables and lines in turn, as wide as the terminal or an exported `COLUMNS`; a pipe has no limit."""
    out = _Output(highlight=False)
    if not sys.stdout.isatty():
        width = None if "COLUMNS" in os.environ else UNLIMITED
        out = _Output(highlight=False, width=width, file=cast("IO[str]", _Trimmed()))
    for part in view:
        if isinstance(part, str):
            out.print(_harmless(part), markup=False, soft_wrap=True)
        else:
            out.print(part, soft_wrap=isinstance(part, Text))


def _harmless(text: str) -> str:
    """Return a text without what would steer a terminal: results and bundles may be anybody's."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


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
    """A table for rich to print, in which nothing is ever cut; columns of figures stand at the right.

    Where the terminal is too narrow texts are wrapped; where figures would not fit side by side any more, each row is
    printed as lines of heading and value.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield what fits."""
        if self.title:
            yield Text(self.title, style="bold")
        columns = list(zip(self.headings, *self.rows, strict=True))
        figures = [len(cells) > 1 and all(map(FIGURE.fullmatch, cells[1:])) for cells in columns]
        least = [
            max(len(piece) for cell in cells for piece in (cell.splitlines() if fixed else cell.split()) or [""])
            for cells, fixed in zip(columns, figures, strict=True)
        ]
        least = [max(w if fixed else min(w, SHORTEST_PIECE), 1) for w, fixed in zip(least, figures, strict=True)]
        if sum(least) + GAP * (len(columns) - 1) > options.max_width:
            yield from self._rows_below_each_other()
            return
        table = Table(box=None, pad_edge=False)
        for name, fixed in zip(self.headings, figures, strict=True):
            table.add_column(Text(name), justify="right" if fixed else "left", no_wrap=fixed, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(_harmless(cell)) for cell in row))
        yield table

    def _rows_below_each_other(self) -> Iterator[RenderableType]:
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            yield pairs([(name, value) for name, value in zip(self.headings, row, strict=True) if value])


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Return names with their values, a line each or more where a value is longer than what is left of a line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(_harmless(value)))
    return table


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % interval.

    Attributes:
        low, high: None without an interval.
        covers: What the interval covers: "restarts", or "timing" where there was one restart only.
    """

    value: float
    low: float | None = None
    high: float | None = None
    covers: str | None = None


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
    """Return some columns of a row of the table of results as people read them."""
    from wattdock.store import COLUMNS

    return {name: cell_text(getattr(row, name), COLUMNS[name].form) for name in names}


def figure_text(figure: Figure | None, form: str = ".4g") -> str:
    """Return "0.0530 [0.0521, 0.0539]", marked where the interval is of timing alone."""
    if figure is None:
        return NOTHING
    if figure.low is None or figure.high is None:
        return format(figure.value, form)
    only = " timing only" if figure.covers == "timing" else ""
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]{only}"


def with_ends(unit: str, figure: Figure | None) -> dict[str, float | None]:
    """Return a figure and the ends of its interval under names for a chart; None for what was not measured."""
    if figure is None:
        return {unit: None, f"{unit} low": None, f"{unit} high": None}
    return {unit: figure.value, f"{unit} low": figure.low, f"{unit} high": figure.high}


def interval_text(value: float, interval: tuple[float, float] | None, form: str) -> str:
    """Return "0.13501 ± 0.00055", both to the half width's second digit; "0.05 [0, 0.14]" where it ends at 0.

    Args:
        form: Format of the value where there is no half width to round to.
    """
    if interval is None:
        return format(value, form)
    low, high = interval
    half = (high - low) / 2
    if low <= 0 or not half:
        return f"{value:{form}} [{low:{form}}, {high:{form}}]"
    places = max(0, 1 - floor(log10(half)))
    return f"{value:,.{places}f} ± {half:,.{places}f}"


def seconds_text(value_s: float | None) -> str:
    """Return milliseconds below one second, else seconds."""
    if value_s is None:
        return NOTHING
    return f"{value_s * 1e3:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"


def where_apart(texts: Sequence[str]) -> list[str]:
    """Return texts whole, or, where one is long, cut around the first place where they differ."""
    if max(map(len, texts), default=0) <= LONG:
        return list(texts)
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)))
    start = max(0, alike - LEAD)
    cut = slice(start, start + LONG)
    return [("…" if start else "") + text[cut] + ("…" if len(text) > cut.stop else "") for text in texts]
