"""Tables and lines for a terminal: rows of results, own and others', answers to SQL, bundles, tasks of a cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text
from rich.text import Text

from wattdock.console.views.terminal import SENTENCES, Listing
from wattdock.reports.cells import NOTHING, cell_text, number, row_cells
from wattdock.store import COLUMNS
from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from wattdock.analysis import Check, Question
    from wattdock.console.views.terminal import View
    from wattdock.fleet import TaskState
    from wattdock.forms import Ladder
    from wattdock.imported import AuditedRow
    from wattdock.publish import CreatedBundle, VerifiedBundle
    from wattdock.store import Row, StoredResult

TASK_COLUMNS = ("task", "state", "node", "GPUs", "done", "passes", "experiments", "why")
# A table of more takes minutes to lay out and nobody reads it.
MOST_ROWS = 1_000
# How many files with names of persons or machines a bundle's line names.
FILES_SHOWN = 3
QUESTIONS: dict[Question, str] = {"wrong": "anything wrong", "known": "known well enough", "repeat": "can be repeated"}
IMPORTED_COLUMNS = ("imported from", "model", "GPUs", "in flight", "tokens/s", "J/token", SENTENCES)
# What the verdict says before the name of a check that did not pass.
STANDINGS = {"fail": "failed", "warn": "warned"}


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
    yield f"in --where (folder and study_id are longer there: LIKE '%NAME'): {', '.join(known)}"
    yield from _more(len(rows))


def ladders_view(ladders: Sequence[Ladder]) -> View:
    """Yield the rungs of each result, for a million units of its work."""
    for ladder in ladders:
        if ladder.no_joules:
            yield ladder.no_joules.what
            continue
        rows = [
            (rung.name, number(rung.value), rung.unit or NOTHING, rung.interval or NOTHING, rung.state, rung.found)
            for rung in ladder.rungs
        ]
        columns = ("", "figure", "unit", "95 % interval", "state", SENTENCES)
        yield Listing(columns, rows, f"{ladder.label}: for a million {ladder.work}")
        yield f"audit: {ladder.audit}"
    if ladders:
        yield "a factor without ± is taken as exact; the gain of the boards' sensors is in no interval"


def _more(count: int) -> View:
    if count > MOST_ROWS:
        yield f"{count:,} rows, the first {MOST_ROWS:,} shown; --json shows all"


def tasks_view(states: Sequence[TaskState], *, most: int | None = None) -> View:
    """Yield a table of a study's tasks, `most` of them, those that run or wait first, and a line about all."""
    first = sorted(states, key=lambda state: (not state.node, not state.job, state.task))[:most] if most else states
    rows = [
        (
            *(str(state.task), state.state, state.node, str(state.gpus), f"{state.done} of {state.experiments}"),
            *(f"{state.measured} of {state.passes}", state.label, state.detail),
        )
        for state in first
    ]
    from wattdock.fleet import summary

    yield Listing(TASK_COLUMNS, rows)
    yield Text(summary(states))


def created_view(bundle: CreatedBundle) -> View:
    """Yield what to look at before the bundle is handed out, what it holds, what is missing, and its digest."""
    names = bundle.identifying_files
    files = pluralize(len(names), "file contains", "files contain")
    which = f": {listed(names, FILES_SHOWN)}" if names else ""
    yield f"checked: {files} your user name, home folder or host name{which}"
    yield from bundle.too_few
    yield from whole_view(bundle)


def whole_view(bundle: VerifiedBundle) -> View:
    """Yield that the bundle is whole, what is missing, and its digest."""
    yield f"{bundle.path}: whole, {bundle.file_count} files, {size_text(bundle.size_bytes)}"
    yield from (f"missing: {sentence}" for sentence in bundle.manifest.missing)
    yield f"digest sha256:{bundle.digest}"


def audited_view(audited: Sequence[AuditedRow], *, own: Sequence[StoredResult] = ()) -> View:
    """Yield a table of all rows, own results first, and a line for each question of the verdict on the others."""
    yield Listing(IMPORTED_COLUMNS, [*map(_own_cells, own), *map(_cells, audited)])
    for question, text in QUESTIONS.items():
        answers = Counter(row.answers[question] for row in audited)
        counts = ", ".join(f"{answer} {count}" for answer, count in sorted(answers.items()))
        failed = _named("failed or warned", (check for row in audited for check in row.against(question)))
        undecided = _named("not decided", (check for row in audited for check in row.missing(question)))
        yield f"{text}? {counts}{failed}{undecided}"
    yield f"{pluralize(len(audited), 'row')} of others, none publishable; --json has checks and links"


def _named(standing: str, checks: Iterable[Check]) -> str:
    """Return "; not decided: repeats (2)": how many rows each check stands so in; nothing where no check does."""
    counts = Counter(check.name for check in checks)
    names = listed([f"{name} ({count})" for name, count in counts.items()])
    return f"; {standing}: {names}" if counts else ""


def _cells(audited: AuditedRow) -> list[str]:
    row = audited.row
    figures = _figures(row.in_flight, row.output_tokens_per_s, row.joules_per_token)
    return [row.origin, row.model or row.workload or NOTHING, row.gpus or NOTHING, *figures, _verdict(audited)]


def _verdict(audited: AuditedRow) -> str:
    """Return each check that failed with what it found, then the names of checks that could not be decided."""
    said = []
    for check in audited.against():
        limit = f" (limit: {check.threshold})" if check.threshold else ""
        said.append(f"{STANDINGS[check.status]}: {check.name}, {check.figure}{limit}")
    if undecided := [check.name for check in audited.missing()]:
        said.append(f"not decided: {', '.join(undecided)}")
    return "; ".join(said) or "no check failed"


def _own_cells(stored: StoredResult) -> list[str]:
    row, judged = stored.row, stored.verdict if stored.result.audit else stored.row.reason or NOTHING
    figures = _figures(row.batch_size, row.output_tokens_per_s, row.energy_per_output_token_j)
    return ["own", row.model, row.gpus or NOTHING, *figures, judged]


def _figures(*values: float | None) -> list[str]:
    # No exponent of ten stands for a speed of five digits.
    return [NOTHING if not value else f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}" for value in values]
