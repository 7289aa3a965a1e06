"""A table for a terminal: rows that others published, with what speaks for and against them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wattdock.console.views.terminal import SENTENCES, Listing
from wattdock.reports.cells import NOTHING
from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import Check, Question
    from wattdock.console.views.terminal import View
    from wattdock.imported import AuditedRow
    from wattdock.store import StoredResult

QUESTIONS: dict[Question, str] = {"wrong": "anything wrong", "known": "known well enough", "repeat": "can be repeated"}
COLUMNS = ("imported from", "model", "GPUs", "in flight", "tokens/s", "J/token", SENTENCES)
# What the verdict says before the name of a check that did not pass.
STANDINGS = {"fail": "failed", "warn": "warned"}


def audited_view(audited: Sequence[AuditedRow], *, own: Sequence[StoredResult] = ()) -> View:
    """Yield a table of all rows, own results first, and a line for each question of the verdict on the others."""
    yield Listing(COLUMNS, [*map(_own_cells, own), *map(_cells, audited)])
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
    row, audit = stored.row, stored.result.audit
    figures = _figures(row.batch_size, row.output_tokens_per_s, row.energy_per_output_token_j)
    return ["own", row.model, row.gpus or NOTHING, *figures, audit.summary if audit else row.reason or NOTHING]


def _figures(*values: float | None) -> list[str]:
    # No exponent of ten stands for a speed of five digits.
    return [NOTHING if not value else f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}" for value in values]
