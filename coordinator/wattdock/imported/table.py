"""What the audit says of each row, as a table in CSV for a page or a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import Check
    from wattdock.imported.checks import AuditedRow

COLUMNS = ("row", "origin", "workload", "model", "GPUs", "GPU", "precision", "in flight", "other settings")
FOUND = ("anything wrong", "known well enough", "can be repeated", "what speaks against it", "evidence is missing of")


def table(audited: Sequence[AuditedRow]) -> str:
    """Return a CSV table: a line for each row, with its link, settings, three answers and what they rest on."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow((*COLUMNS, *FOUND))
    for one in audited:
        row = one.row
        counts = ["" if number is None else f"{number:g}" for number in (row.gpu_count, row.in_flight)]
        others = "; ".join(f"{name} {text}" for name, text in row.other_settings.items())
        settings = (row.origin, row.workload, row.model, counts[0], row.gpu, row.precision, counts[1], others)
        found = (f"{check.name}: {check.figure}" for check in one.against())
        writer.writerow((row.link, *settings, *one.answers.values(), "; ".join(found), _names(one.missing())))
    return content.getvalue()


def _names(checks: Iterable[Check]) -> str:
    return ", ".join(check.name for check in checks)
