"""Everything that a command prints: one `show` for people and for programs, and the views of smaller things."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.text import Text

from wattdock.output import print_json
from wattdock.reports.terminal import NOTHING, Listing, Sheet, cell_text, number, pairs, print_view, row_cells, to_plain
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from wattdock.analysis import Check, WindowSummary
    from wattdock.launch.images import ImageStatus
    from wattdock.metering import MeterCard
    from wattdock.reports.terminal import View
    from wattdock.store import Row

# Classes of other rooms → the module here and the function that shows an object, or for a plural a list of them. By
# name, so that a command imports what it shows and nothing else.
VIEWS = {
    "Estimate": ("plan_view", "estimate_view"),
    "ImageStatus": ("views", "images_view"),
    "MeterCard": ("views", "card_view"),
    "Row": ("views", "rows_view"),
    "StoredResult": ("result_view", "results_view"),
    "Table": ("views", "table_view"),
    "WindowSummary": ("views", "windows_view"),
}
WINDOW_COLUMNS = ("window", "restart", "pass", "seconds", "output tokens", "J/token", "why not")
# A table of more takes minutes to lay out and nobody reads it.
MOST_ROWS = 1_000
# Of a digest, its algorithm and twelve digits; of a commit twelve.
DIGEST, COMMIT = 19, 12
STYLES = {"pass": "green", "info": "cyan", "warn": "yellow", "fail": "bold red", "unknown": "bold magenta"}
INDENT = " " * 8


def show(value: Any, *, as_json: bool = False, indent: int | None = 2, **options: Any) -> None:
    """Print an object of a class in `VIEWS` or with a method `as_view`, or a list of the former; or as JSON.

    Args:
        indent: Spaces per level of JSON; a single line without it.
        options: Further arguments of the object's view.
    """
    if as_json:
        print_json(to_plain(value), indent=indent, default=str)
        return
    if hasattr(value, "as_view"):
        print_view(value.as_view(**options))
        return
    kind = type(value[0]) if isinstance(value, list | tuple) and value else type(value)
    module, name = VIEWS.get(kind.__name__, ("result_view", "results_view"))
    print_view(getattr(import_module(f"wattdock.reports.{module}"), name)(value, **options))


class CheckList:
    """Checks, shown as they are made, and whether a measurement would be sound."""

    def __init__(self, checks: Iterable[Check]) -> None:
        """Take checks, some of which may still have to be made."""
        self.pending = iter(checks)
        self.checks: list[Check] = []

    def __iter__(self) -> Iterator[Check]:
        """Make the checks that are pending, one after the other."""
        for check in self.pending:
            self.checks.append(check)
            yield check

    @property
    def unsound(self) -> list[str]:
        """Names of the checks that failed or stayed unknown, which never passes."""
        return [check.name for check in self.checks if check.status in ("fail", "unknown")]

    def as_json(self) -> dict[str, Any]:
        """Make every check and return them with the verdict."""
        checks = [*self.checks, *self]
        return {
            "schema_version": 1,
            "sound": not self.unsound,
            "checks": [check.model_dump(mode="json") for check in checks],
        }

    def as_view(self) -> View:
        """Yield each check as it is made, then the verdict."""
        for check in self:
            yield from check_lines(check)
        if self.unsound:
            yield f"a measurement here would not be sound: {', '.join(self.unsound)}"
            return
        warnings = sum(check.status == "warn" for check in self.checks)
        yield "a measurement here would be sound" + (
            f"; {pluralize(warnings, 'warning')} to know about" if warnings else ""
        )


def check_lines(check: Check) -> View:
    """Yield one check: status, name, figure and limit, and below them what to do."""
    limit = f" (limit: {check.threshold})" if check.threshold else ""
    yield Text.assemble((f"{check.status:<8}", STYLES[check.status]), f"{check.name}: {check.figure}{limit}")
    if check.remedy:
        yield f"{INDENT}→ {check.remedy}"


def images_view(images: Sequence[ImageStatus]) -> View:
    """Yield a row per image."""
    rows = [
        (image.name, _short(image.digest or image.id), _commit(image.revision), _short(image.locked), image.state)
        for image in images
    ]
    yield Sheet(("image", "on this engine", "revision", "locked", "state"), rows)


def _short(reference: str | None) -> str:
    name, at, digest = (reference or NOTHING).rpartition("@")
    return f"{name}{at}{digest[:DIGEST]}"


def _commit(revision: str | None) -> str:
    commit, dash, dirty = (revision or NOTHING).partition("-")
    return f"{commit[:COMMIT]}{dash}{dirty}"


def windows_view(summary: WindowSummary) -> View:
    """Yield each pass under each definition of a window, then every definition's total and how far they differ.

    Restarts and passes count from 1, as everywhere that people read.
    """
    rows = [
        (
            *(
                measured.window,
                str(measured.restart + 1),
                str(measured.pass_index + 1),
                number(measured.duration_s, ".2f"),
            ),
            *(number(measured.output_tokens, ","), number(measured.energy_per_output_token_j, ".5g")),
            measured.reason or "",
        )
        for measured in summary.passes
    ]
    yield Sheet(WINDOW_COLUMNS, rows)
    totals = (f"{name} {number(value, '.5g')}" for name, value in summary.energy_per_output_token_j.items())
    yield f"J/output token: {', '.join(totals)}"
    yield f"the definitions differ by {number(summary.relative_spread, '.2%')}"


def table_view(table: pa.Table) -> View:
    """Yield the first rows of a table, every column, and how many there are where that is not all."""
    # Of columns that are called the same, a list of objects would hold the last only.
    columns = [map(_answer, column.to_pylist()) for column in table.slice(0, MOST_ROWS).columns]
    yield Listing(table.column_names, list(zip(*columns, strict=True)))
    yield from _more(table.num_rows)


def _answer(value: Any) -> str:
    return cell_text(value, ".6g" if isinstance(value, float) else "")


def rows_view(rows: Sequence[Row], *, columns: Sequence[str], names: Mapping[str, str]) -> View:
    """Yield some columns of the first rows of the table of results, and how many there are where that is not all.

    Args:
        columns: Those without any value are left out.
        names: What to type for the name of a result or a study.
    """
    from wattdock.store import COLUMNS

    known = [name for name in columns if any(getattr(row, name) is not None for row in rows)]
    cells = [[names.get(cell, cell) for cell in row_cells(row, known).values()] for row in rows[:MOST_ROWS]]
    yield Listing([COLUMNS[name].heading for name in known], cells)
    yield from _more(len(rows))


def _more(count: int) -> View:
    if count > MOST_ROWS:
        yield f"{count:,} rows, the first {MOST_ROWS:,} shown; --json shows all"


def card_view(card: MeterCard) -> View:
    """Yield what was found out about the energy counter of one GPU."""
    yield Text(f"{card.gpu_name} {card.gpu_uuid}", style="bold")
    yield pairs(_card_rows(card))


def _card_rows(card: MeterCard) -> list[tuple[str, str]]:
    lag = "unknown" if card.lag_s is None else f"{_ms(card.lag_s)} ± {_ms(card.lag_std_s or 0.0)}"
    rows = [
        ("period", f"{_ms(card.period_s)}, standard deviation {_ms(card.period_std_s)}"),
        ("one read", f"{_ms(card.read_median_s)} median, {_ms(card.read_p99_s)} at the 99th percentile"),
        ("lag", f"{lag} from {card.pulses} pulses"),
    ]
    for step in card.steps:
        left_out = " (power overshoot: left out)" if step.overshoot else ""
        spread = f"standard deviation {_ms(step.standard_deviation_s)}, {step.steps} steps{left_out}"
        rows.append((f"  {step.kind}", f"{_ms(step.mean_s)}, {spread}"))
    if card.smoothing_periods is not None:
        rows.append(("smoothing", f"{card.smoothing_periods:.2f} periods after a step's own"))
    if card.additivity is not None:
        rows.append(("additivity", f"{card.additivity:+.3%}"))
    rows.append(("in results", f"not used: {card.doubt}" if card.doubt else "used on this GPU under this driver"))
    return rows


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:.1f} ms"
