"""Values as people read them in tables and charts: numbers, figures with intervals, signs."""

from __future__ import annotations

from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.store import COLUMNS
from wattdock.text import SIGNIFICANT, significant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import statistics
    from wattdock.store import Row

__all__ = ["DISTURBED", "MARK", "NOTHING", "cell_text", "figure_text", "marked", "number", "row_cells", "seconds_text"]

# The cell of an unknown value.
NOTHING = "–"
# Stands behind the name of a result that others disturbed.
MARK = "†"
DISTURBED = f"{MARK} Others used its CPUs or GPUs meanwhile."
# Half of an interval ÷ its figure below which the interval is rounding.
NO_SPREAD = 1e-6


def number(value: float | None, form: str = SIGNIFICANT) -> str:
    """Return a number in a format, or a dash for what was not measured."""
    return NOTHING if value is None else significant(value, form)


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
    return Path(value).name if form == "file name" else number(value, form) if form else str(value)


def row_cells(row: Row, names: Sequence[str]) -> dict[str, str]:
    """Return some columns of a row of the table of results as people read them; a sign marks a disturbed one."""
    cells = {name: cell_text(getattr(row, name), COLUMNS[name].form) for name in names}
    sign_at = next((name for name in ("status", "name") if name in cells), None)
    return cells | ({sign_at: marked(cells[sign_at], row.disturbed)} if sign_at else {})


def marked(label: str, disturbed: object) -> str:
    """Return the name or status of what others may have disturbed, with a sign behind it where they did."""
    return f"{label} {MARK}" if disturbed else label


def figure_text(figure: statistics.Figure | None, form: str = SIGNIFICANT) -> str:
    """Return "0.13501 [0.13446, 0.13556]", all to the second digit of the interval's half width.

    Args:
        form: As `number` takes it, for a value without a half width to round to.
    """
    if figure is None:
        return NOTHING
    if figure.interval is None:
        return number(figure.value, form)
    half = (figure.interval.high - figure.interval.low) / 2
    if half > NO_SPREAD * figure.value:
        form = f",.{max(0, 1 - floor(log10(half)))}f"
    return f"{number(figure.value, form)} {figure.interval:{form}}"


def seconds_text(value_s: float | None) -> str:
    """Return milliseconds below one second, else seconds."""
    if value_s is None:
        return NOTHING
    return f"{value_s * 1e3:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"
