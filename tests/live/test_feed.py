"""What a page believes of other users' runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from seams.live import feed as feeds

from wattdock.host import leases
from wattdock.live import Feed, GpuSnapshot
from wattdock.study import WatchedRun

if TYPE_CHECKING:
    from pathlib import Path


def in_pass(path: Path, pid: int, *, is_ours: bool) -> WatchedRun:
    """Return a run that says that it measures a pass."""
    run = WatchedRun(path, pid=pid, is_ours=is_ours)
    run.state.stage = "pass 1/1"
    return run


@pytest.mark.parametrize(("lease", "blocks"), [("", False), ("anything", False), (leases.CPU, True)])
def test_another_user_s_pass_counts_with_a_lease_and_for_so_long(tmp_path: Path, lease: str, blocks: bool) -> None:
    """A lease of no GPU is none; then as long without regard as with it."""
    feed = Feed(tmp_path)
    holder = leases.Holder("other", 7, "wattdock", "2026-01-01T00:00:00+00:00")
    feed.view = GpuSnapshot(**vars(feed.view) | {"leases": {lease: holder} if lease else {}})
    feed.runs = [in_pass(tmp_path / "theirs", 7, is_ours=False)]
    begin_s, turn_s = 100.0, feeds.COURTESY_S
    said = [feed._measuring(begin_s + turns * turn_s) for turns in (0, 0.9, 1.1, 1.9, 2.1)]
    assert [name == "theirs" for name in said] == [blocks, blocks, False, False, blocks]
    feed.runs.append(in_pass(tmp_path / "own", 8, is_ours=True))
    assert feed._measuring(begin_s + 3.5 * turn_s) == "own"
