"""The page about others' rows, in Markdown: what was asked, what was found, and every row that was looked at."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.imported.checks import AuditedRow
    from wattdock.imported.read import Imported


def page(audited: Sequence[AuditedRow]) -> Iterator[str]:
    """Yield three tables, line by line: what each check found, rows with something against them, all series of rows."""
    yield from (pluralize(len(audited), "row") + ".", "")
    for table in (_by_check, _against, _series):
        yield from (*table(audited), "")


def _by_check(audited: Sequence[AuditedRow]) -> Iterator[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    # A row to which every check applies first: it has them in their order.
    for row in sorted(audited, key=lambda row: -len(row.checks)):
        for check in row.checks:
            counts[check.name]["against" if check.status in ("fail", "warn") else check.status] += 1
    yield from ("| check | nothing against | against | evidence is missing |", "|---|---|---|---|")
    for name, found in counts.items():
        yield f"| {name} | {found['pass']:,} | {found['against']:,} | {found['unknown']:,} |"


def _against(audited: Sequence[AuditedRow]) -> Iterator[str]:
    yield from ("| row | setting | in flight | what speaks against it |", "|---|---|---|---|")
    for row in (row for row in audited if row.against()):
        found = "; ".join(f"{check.name}: {check.figure}" for check in row.against())
        in_flight = f"{row.row.in_flight:g}" if row.row.in_flight else "–"
        yield f"| {_link(row.row)} | {_setting(row.row)} | {in_flight} | {found} |"


def _series(audited: Sequence[AuditedRow]) -> Iterator[str]:
    series: dict[str, list[AuditedRow]] = defaultdict(list)
    for row in audited:
        series[_setting(row.row)].append(row)
    yield from (
        "| rows | of them with something against | setting | in flight | the first row |",
        "|---|---|---|---|---|",
    )
    for setting, rows in series.items():
        loads = [f"{in_flight:g}" for in_flight in sorted(row.row.in_flight for row in rows if row.row.in_flight)]
        against = sum(bool(row.against()) for row in rows)
        yield f"| {len(rows)} | {against or '–'} | {setting} | {', '.join(loads)} | {_link(rows[0].row)} |"


def _setting(row: Imported) -> str:
    count = f"{row.gpu_count:g} × " if row.gpu_count else ""
    others = [f"{name} {text}" for name, text in row.other_settings.items() if text != "1"]
    named = [row.origin, row.workload, row.model, f"{count}{row.gpu}" if row.gpu else None, row.precision, *others]
    return ", ".join(part.replace("|", "\\|") for part in named if part)


def _link(row: Imported) -> str:
    """A row's place in its file, linked to the file where that was published."""
    address, _, place = row.link.partition("#")
    shown = f"{address.rpartition('/')[2]}{place.replace('/configurations', '')}"
    return f"[{shown}]({address})" if "://" in address else shown
