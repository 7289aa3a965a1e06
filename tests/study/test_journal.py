"""A journal that survives whatever ends its writer."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from wattdock.errors import StoreError
from wattdock.execution.journal import Journal, read_journal

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, *events: str) -> bytes:
    journal = Journal(path)
    for event in events:
        journal.append(event, n=1)
    journal.close()
    return path.read_bytes()


def test_a_line_cut_anywhere_costs_that_line_only(tmp_path: Path) -> None:
    """A coordinator can be killed, and a disk be full, in the middle of a write."""
    path = tmp_path / "journal.jsonl"
    content = written(path, "one", "two")
    first = content.index(b"\n") + 1
    for size in range(first, len(content)):
        path.write_bytes(content[:size])
        assert [line["event"] for line in read_journal(path)] == ["one"]
        journal = Journal(path)
        assert [line["event"] for line in journal.lines] == ["one"]
        journal.append("three")
        journal.close()
        assert [line["event"] for line in read_journal(path)] == ["one", "three"]


def test_two_coordinators_do_not_write_one_journal(tmp_path: Path) -> None:
    """The second is told, not let in."""
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    with pytest.raises(StoreError, match="another wattdock is running this study"):
        Journal(path)
    first.close()
    Journal(path).close()


@pytest.mark.parametrize(
    "spoiled",
    [
        b"nonsense",
        b"\xff",
        b"5",
        b"[1]",
        b'{"evnt": "x"}',
        b'{"event": "stored", "experiment": "x"}',
        b'{"event": "study"}',
    ],
)
def test_a_spoiled_line_in_the_middle_is_named_not_skipped(tmp_path: Path, spoiled: bytes) -> None:
    """It may be the one that says what was measured."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event": "one"}\n' + spoiled + b'\n{"event": "two"}\n')
    with pytest.raises(StoreError, match=r"journal\.jsonl:2: is no journal line"):
        read_journal(path)


def test_a_line_that_found_no_room_is_not_written_later(tmp_path: Path) -> None:
    """Closing tries nothing again, and the next line follows the last whole one."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("one")
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(OSError, match=r"No space left|File too large"):
            journal.append("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.close()
    assert path.read_bytes() == before
