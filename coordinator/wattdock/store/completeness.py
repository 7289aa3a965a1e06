"""What results lack of the study that they belong to, as its journal tells."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from wattdock.files import JOURNAL, MAX_JOURNAL_BYTES, STORED, STUDIES
from wattdock.owned_folder import OwnedFolder
from wattdock.text import from_json, listed, without_timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.store.folders import Warn
    from wattdock.store.table import Row


def lacking(rows: Sequence[tuple[Path, Row]], warn: Warn, *, unmeasured: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the declared experiments without a result, or without their last one, by study; a complete study has none.

    Args:
        rows: Every row of each study, those that a later attempt replaces included, beside the folder of results that
            it lies in. A folder without the study's journal tells nothing.
        warn: Receives a line about each such study.
        unmeasured: Whether experiments count of which the study has stored no result; else only those that it has.
    """
    latest: dict[tuple[Path, str], Counter[str]] = {}
    for parent, row in rows:
        if row.study_id:
            attempts = latest.setdefault((parent, row.study_id), Counter())
            attempts[row.experiment_id] = max(attempts[row.experiment_id], row.attempt or 0)
    found = {}
    for (parent, study), attempts in latest.items():
        declared, stored = _journal(parent, study)
        lost = [name for key, name in declared.items() if stored[key] > attempts[key]]
        left = [name for key, name in declared.items() if unmeasured and not stored[key] and not attempts[key]]
        if names := (*lost, *left):
            found[study] = names
            whys = f"stored, but not here: {listed(lost)}" * bool(lost), f"not measured: {listed(left)}" * bool(left)
            of = f"{len(names)} of {len(declared)} declared experiments"
            warn(f"{without_timestamp(study)} lacks the results of {of}; {'; '.join(filter(None, whys))}")
    return found


def _journal(parent: Path, study: str) -> tuple[dict[str, str], Counter[str]]:
    """Return a study's experiments by id, with their names, and how many results of each it has stored."""
    declared: dict[str, str] = {}
    stored: Counter[str] = Counter()
    # A journal may be left behind, be another user's, or anything: then nothing is known.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError), OwnedFolder.open(parent) as results:
        with results.folder(f"{STUDIES}/{study}", allow_other_owner=True) as folder:
            content = folder.read(JOURNAL, limit_bytes=MAX_JOURNAL_BYTES)
        head, *lines = map(from_json, content[: content.rfind(b"\n") + 1].splitlines())
        stored = Counter(line["experiment"] for line in lines if line["event"] == STORED)
        declared = {key: str(config.get("name") or key[:8]) for key, config in head["experiments"].items()}
    return declared, stored
