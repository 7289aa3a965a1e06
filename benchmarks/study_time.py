"""Where a study's time went: loading, warming up, measuring, and all the rest.

    python benchmarks/study_time.py results/studies/ID

Reads the study's journal and the rows that it stored. Time between an interruption and its resumption is not counted.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.clock import NS_PER_S
from wattdock.errors import WattdockError
from wattdock.execution.study_folder import JOURNAL, RESUMED, STORED, read_journal
from wattdock.store.folders import load_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.analysis.result import ExperimentResult

KINDS = ("launch", "load", "warm-up", "pass")


def wall_s(lines: Sequence[dict[str, Any]]) -> float:
    """Return the seconds from the journal's first line to its last, less those before each resumption."""
    at = [(line["event"], datetime.fromisoformat(line["at_utc"])) for line in lines]
    return sum((later - earlier).total_seconds() for (_, earlier), (event, later) in pairwise(at) if event != RESUMED)


def seconds_by_kind(results: Sequence[ExperimentResult]) -> dict[str, dict[str, float]]:
    """Return seconds by backend and kind of span; what experiments of one load group share is counted once."""
    seen = {(one.config["backend"], span.name, span.start_ns, span.end_ns) for one in results for span in one.spans}
    found: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(KINDS, 0.0))
    for backend, name, start_ns, end_ns in seen:
        if name in KINDS:
            found[backend][name] += (end_ns - start_ns) / NS_PER_S
    return found


def last_rows(folder: Path, lines: Sequence[dict[str, Any]]) -> Iterator[ExperimentResult]:
    """Yield the row that stands for each experiment."""
    last = {line["experiment"]: line["folder"] for line in lines if line["event"] == STORED}
    for name in last.values():
        yield load_result(folder.parents[1] / name)


def main() -> int:
    """Print the table and return the exit code."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: study_time.py results/studies/ID\n")
        return 2
    folder = Path(sys.argv[1]).resolve()
    try:
        lines = read_journal(folder / JOURNAL)
        results = list(last_rows(folder, lines))
    except WattdockError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    total_s, spent = wall_s(lines), seconds_by_kind(results)
    rows = [(backend, kind, seconds) for backend, kinds in sorted(spent.items()) for kind, seconds in kinds.items()]
    rows.append(("", "everything else", total_s - sum(seconds for _, _, seconds in rows)))
    sys.stdout.write("| backend | what | seconds | share |\n|---|---|---|---|\n")
    for backend, kind, seconds in [*rows, ("", "all", total_s)]:
        sys.stdout.write(f"| {backend} | {kind} | {seconds:.1f} | {seconds / total_s:.1%} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
