"""A journal that survives whatever ends its writer, and what it says of each experiment."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import pytest

from wattdock.errors import StoreError
from wattdock.execution.study_folder import History, Journal, histories, read_journal

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


def line(event: str, **values: Any) -> dict[str, Any]:
    return {"event": event, "experiment": "e", **values}


MEASURED = line("pass", restart=0, **{"pass": 1})
OK, FAILED, INTERRUPTED = (line("stored", status=status, folder=status) for status in ("ok", "failed", "interrupted"))


def done(*lines: dict[str, Any], retry_failed: bool = False) -> bool:
    return histories(lines).get("e", History()).is_done(retry_failed=retry_failed)


def test_only_a_whole_result_ends_an_experiment() -> None:
    """A failure does too, unless it is to be tried again; an interruption never."""
    assert done(MEASURED, OK)
    assert done(OK, retry_failed=True)
    assert done(FAILED)
    assert not done(FAILED, retry_failed=True)
    assert not done(INTERRUPTED)
    assert not done(MEASURED)
    assert not done({"event": "resumed"})


def test_a_retry_that_was_killed_is_gone_on_with_and_not_begun_again() -> None:
    """What it has measured is not measured twice, with or without `--retry-failed`."""
    killed = histories([MEASURED, FAILED, line("retried"), MEASURED])["e"]
    assert killed.status == "interrupted"
    assert killed.passes == {(0, 1)}
    assert killed.folders == ["failed"]
    assert not done(FAILED, line("retried"))
    assert done(FAILED, line("retried"), OK, retry_failed=True)


def test_the_last_result_stands_for_the_earlier() -> None:
    """An interrupted result, then the whole one."""
    assert histories([INTERRUPTED, OK])["e"].folders[-1] == "ok"
    assert done(INTERRUPTED, OK)
