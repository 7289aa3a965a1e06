"""Tables for a terminal: rows of the table of results, answers to SQL, tasks of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.console.views.terminal import SENTENCES, Listing, Sheet
from wattdock.reports.cells import NOTHING, cell_text, number, row_cells
from wattdock.store import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from wattdock.console.views.terminal import View
    from wattdock.fleet import TaskState
    from wattdock.forms import Ladder
    from wattdock.store import Row

TASK_COLUMNS = ("task", "state", "node", "GPUs", "done", "passes", "experiments", "why")
# A table of more takes minutes to lay out and nobody reads it.
MOST_ROWS = 1_000


def table_view(table: pa.Table) -> View:
    """Yield the first rows of a table, every column, and how many there are where that is not all."""
    # Columns may have equal names, of which a list of objects would hold the last only.
    columns = [
        [cell_text(value, ".6g" if isinstance(value, float) else "") for value in column.to_pylist()]
        for column in table.slice(0, MOST_ROWS).columns
    ]
    yield Listing(table.column_names, list(zip(*columns, strict=True)))
    yield from _more(table.num_rows)


def rows_view(rows: Sequence[Row], *, columns: Sequence[str], names: Mapping[str, str]) -> View:
    """Yield some columns of the first rows of the table of results, and how many there are where that is not all.

    Args:
        columns: Those without any value are left out.
        names: What to type for the name of a result or a study.
    """
    known = [name for name in columns if any(getattr(row, name) is not None for row in rows)]
    cells = [[names.get(cell, cell) for cell in row_cells(row, known).values()] for row in rows[:MOST_ROWS]]
    yield Listing([COLUMNS[name].heading for name in known], cells)
    yield from _more(len(rows))


def ladders_view(ladders: Sequence[Ladder]) -> View:
    """Yield the rungs of each result, for a million units of its work."""
    for each in ladders:
        rows = [
            (
                rung.name,
                number(rung.value),
                rung.unit or NOTHING,
                rung.interval or NOTHING,
                rung.state,
                rung.found,
            )
            for rung in each.rungs
        ]
        yield Listing(
            ("", "figure", "unit", "95 % interval", "state", SENTENCES),
            rows,
            f"{each.label}: for a million {each.work}",
        )
        yield f"audit: {each.audit}"
    if ladders:
        yield "a factor without ± is taken as exact; the gain of the boards' sensors is in no interval"


def _more(count: int) -> View:
    if count > MOST_ROWS:
        yield f"{count:,} rows, the first {MOST_ROWS:,} shown; --json shows all"


def tasks_view(states: Sequence[TaskState], *, most: int | None = None) -> View:
    """Yield a table of the tasks of a study on a cluster, and a line about all.

    Args:
        most: How many tasks to show at most, tasks that run or wait first.
    """
    first = sorted(states, key=lambda state: (not state.node, not state.job, state.task))[:most] if most else states
    rows = [
        (
            *(str(state.task), state.state, state.node, str(state.gpus), f"{state.done} of {state.experiments}"),
            *(f"{state.measured} of {state.passes}", state.label, state.detail),
        )
        for state in first
    ]
    from wattdock.fleet import summary

    yield Sheet(TASK_COLUMNS, rows)
    yield Text(summary(states))
