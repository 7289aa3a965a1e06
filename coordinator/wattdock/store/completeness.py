"""What results lack of the study that they belong to, as its journal tells, and what they hold twice."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from wattdock.files import JOURNAL, MAX_JOURNAL_BYTES, RESULT, STORED, STUDIES, real_path
from wattdock.owned_folder import OwnedFolder
from wattdock.text import from_json, listed, without_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from wattdock.store.folders import StoredResult, Warn
    from wattdock.store.table import Row


def once(results: Iterable[tuple[StoredResult, Row]], warn: Warn) -> Iterator[tuple[StoredResult, Row]]:
    """Yield each measurement once, beside its row: a copy of a result would count as more restarts.

    A copy that another user made takes nobody's place: it may lack what the first one has.

    Args:
        warn: Receives a line about each copy, each result.json that was changed since it was stored, and where a study
            has two results of one attempt, as studies of two machines may have after their folders were merged.
    """
    first: dict[tuple[str, str, int | None, int | None], tuple[StoredResult, Row]] = {}
    for stored, row in results:
        if stored.is_changed:
            warn(f"{stored.place}: {RESULT} was changed since it was stored; --again takes figures from the records")
        key = (row.study_id or row.folder, row.experiment_id, row.attempt, _owner(stored.folder))
        other, known = first.setdefault(key, (stored, row))
        if other is stored or replace(known, folder=row.folder) != row:
            if other is not stored:
                warn(f"{other.place} and {stored.place} are two results of one attempt, of two machines or changed")
            yield stored, row
        elif real_path(other.folder) != real_path(stored.folder):
            warn(f"{stored.place} is a copy of {other.place}, and counts once")


def _owner(folder: Path) -> int | None:
    """Return the user id of a folder's owner; None where it is gone, or may no longer be opened."""
    with suppress(OSError), OwnedFolder.open(folder) as opened:
        return opened.owner
    return None


def lacking(rows: Iterable[tuple[Path, Row]], warn: Warn, *, unmeasured: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the declared experiments without a result, or without their last one, by study; a complete study has none.

    Args:
        rows: Every row of each study, those that a later attempt replaces included, beside the folder of results that
            it lies in, whose journal of the study counts; without one nothing is known.
        warn: Receives a line about each such study.
        unmeasured: Whether experiments count of which the study has stored no result; else only those that it has.
    """
    studies: dict[str, list[tuple[Path, Row]]] = {}
    for parent, row in rows:
        if row.study_id:
            studies.setdefault(row.study_id, []).append((parent, row))
    found = {}
    for study, of_study in studies.items():
        attempts, declared, stored = Counter[str](), dict[str, str](), Counter[str]()
        for _, row in of_study:
            attempts[row.experiment_id] = max(attempts[row.experiment_id], row.attempt or 0)
        for parent in dict.fromkeys(parent for parent, _ in of_study):
            told, counts = _journal(parent, study)
            declared, stored = declared | told, stored | counts
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
