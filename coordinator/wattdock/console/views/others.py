"""A table for a terminal: rows that others published, with what speaks for and against them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wattdock.console.views.terminal import SENTENCES, Listing
from wattdock.reports.cells import NOTHING
from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import Question
    from wattdock.console.views.terminal import View
    from wattdock.imported import AuditedRow
    from wattdock.store import StoredResult

QUESTIONS: dict[Question, str] = {"wrong": "anything wrong", "known": "known well enough", "repeat": "can be repeated"}
COLUMNS = ("imported from", "model", "GPUs", "in flight", "tokens/s", "J/token", SENTENCES)


def audited_view(audited: Sequence[AuditedRow], *, own: Sequence[StoredResult] = ()) -> View:
    """Yield a table of all rows, own results first, and a line for each question of the verdict on the others."""
    yield Listing(COLUMNS, [*map(_own_cells, own), *map(_cells, audited)])
    for question, text in QUESTIONS.items():
        answers = Counter(row.answers[question] for row in audited)
        lacking = Counter(f"{check.name}" for row in audited for check in row.missing(question))
        missing = f"; evidence is missing of {listed([f'{name} ({count})' for name, count in lacking.items()])}"
        counts = ", ".join(f"{answer} {count}" for answer, count in sorted(answers.items()))
        yield f"{text}? {counts}{missing if lacking else ''}"
    yield f"{pluralize(len(audited), 'row')} of others, none publishable; --json has checks and links"


def _cells(audited: AuditedRow) -> list[str]:
    row = audited.row
    figures = _figures(row.in_flight, row.output_tokens_per_s, row.joules_per_token)
    found = [f"{check.name}: {check.figure}" for check in audited.against()]
    questions = ", ".join(QUESTIONS[question] for question, answer in audited.answers.items() if answer == "unknown")
    said = "; ".join(found) or (f"unknown: {questions}" if questions else "nothing against it")
    return [row.origin, row.model or row.workload or NOTHING, row.gpus or NOTHING, *figures, said]


def _own_cells(stored: StoredResult) -> list[str]:
    row, audit = stored.row, stored.result.audit
    figures = _figures(row.batch_size, row.output_tokens_per_s, row.energy_per_output_token_j)
    return ["own", row.model, row.gpus or NOTHING, *figures, audit.summary if audit else row.reason or NOTHING]


def _figures(*values: float | None) -> list[str]:
    return [f"{value:,.4g}" if value else NOTHING for value in values]
