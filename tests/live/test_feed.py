"""What a page believes of other users' runs, and who it takes for its owner."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from seams.live import feed as feeds
from seams.live import peer_of

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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_says_whose_a_connection_on_this_machine_is(host: str) -> None:
    """Not of one that is being closed, which has no user any more."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        ends = server.getsockname()[:2]
        with socket.create_connection(ends) as client:
            accepted, _ = server.accept()
            here = client.getsockname()[:2]
            assert peer_of(here, ends) == os.geteuid()
        with accepted:
            assert peer_of(here, ends) == host
    assert peer_of(("192.0.2.1", 9), ends) == "192.0.2.1"
