"""The page about others' rows, in Markdown: what was asked, what was found, and every row that was looked at."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.imported.checks import AuditedRow
    from wattdock.imported.read import Imported


def page(audited: Sequence[AuditedRow]) -> str:
    """Return three tables: what each check found, the rows that something speaks against, and all series of rows."""
    return "\n".join([*_by_check(audited), "", *_against(audited), "", *_series(audited), ""])


def _by_check(audited: Sequence[AuditedRow]) -> Iterator[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in audited:
        for check in row.checks:
            counts[check.name]["against" if check.status in ("fail", "warn") else check.status] += 1
    yield f"{len(audited):,} rows.\n"
    yield from ("| check | nothing against | against | evidence is missing |", "|---|---|---|---|")
    for name, found in counts.items():
        yield f"| {name} | {found['pass']:,} | {found['against']:,} | {found['unknown']:,} |"


def _against(audited: Sequence[AuditedRow]) -> Iterator[str]:
    yield from ("| row | setting | in flight | what speaks against it |", "|---|---|---|---|")
    for row in (row for row in audited if row.against()):
        found = "; ".join(f"{check.name}: {check.figure}" for check in row.against())
        yield f"| {_link(row.row)} | {_setting(row.row)} | {row.row.in_flight or '?':g} | {found} |"


def _series(audited: Sequence[AuditedRow]) -> Iterator[str]:
    series: dict[tuple[str, str], list[AuditedRow]] = defaultdict(list)
    for row in audited:
        series[row.row.link.partition("#")[0], _setting(row.row)].append(row)
    yield from (
        "| rows | of them with something against | setting | in flight | the first row |",
        "|---|---|---|---|---|",
    )
    for (_, setting), rows in series.items():
        loads = [f"{row.row.in_flight:g}" for row in rows if row.row.in_flight]
        against = sum(bool(row.against()) for row in rows)
        yield f"| {len(rows)} | {against or '–'} | {setting} | {', '.join(loads)} | {_link(rows[0].row)} |"


def _setting(row: Imported) -> str:
    count = f"{row.gpu_count:g} × " if row.gpu_count else ""
    named = [row.origin, row.workload, row.model, f"{count}{row.gpu}" if row.gpu else None, row.precision]
    return ", ".join(part for part in named if part)


def _link(row: Imported) -> str:
    """A row's place in its file, linked to the file where that was published."""
    address, _, place = row.link.partition("#")
    shown = f"{address.rpartition('/')[2]}{place.replace('/configurations', '')}"
    return f"[{shown}]({address})" if "://" in address else shown
