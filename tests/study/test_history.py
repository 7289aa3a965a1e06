"""What a journal says of each experiment, wherever its coordinator was killed."""

from __future__ import annotations

from typing import Any

from wattdock.execution.history import Past, pasts


def line(event: str, **facts: Any) -> dict[str, Any]:
    return {"event": event, "experiment": "e", **facts}


MEASURED = line("pass", restart=0, **{"pass": 1})
OK, FAILED, INTERRUPTED = (line("stored", status=one, folder=one) for one in ("ok", "failed", "interrupted"))


def done(*lines: dict[str, Any], retry_failed: bool = False) -> bool:
    return pasts(lines).get("e", Past()).is_done(retry_failed=retry_failed)


def test_only_a_row_that_is_whole_ends_an_experiment() -> None:
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
    killed = pasts([MEASURED, FAILED, line("retried"), MEASURED])["e"]
    assert killed.status == "interrupted"
    assert killed.noted == {(0, 1)}
    assert killed.folders == ["failed"]
    assert not done(FAILED, line("retried"))
    assert done(FAILED, line("retried"), OK, retry_failed=True)


def test_the_last_row_stands_for_the_earlier() -> None:
    """An interrupted row, then the whole one."""
    assert pasts([INTERRUPTED, OK])["e"].folders[-1] == "ok"
    assert done(INTERRUPTED, OK)
