"""Whom the kernel killed for lack of memory: one of a runner's group, or anybody."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from seams.launch import OomKills

from wattdock.config import ContainerSpec
from wattdock.launch import LauncherChoice

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("5:memory:/jobs/7\n0::/\n", "memory/jobs/7/memory.oom_control"),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control"),
        ("0::/\n", "memory.events.local"),
        ("0::/jobs/7\n", "jobs/memory.events.local"),
    ],
    ids=["first version beside the second", "of another namespace", "own namespace", "no controller of its own"],
)
def test_the_nearest_group_that_counts_is_the_runner_s_and_a_container_s_is_unknown(
    groups: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened before is nobody's; others' processes count only where the machine is all that is known."""
    monkeypatch.setattr("wattdock.launch.launcher_choice.OomKills", partial(OomKills, root=tmp_path))
    write(tmp_path, "proc/vmstat", "pgfault 12\noom_kill 7\n")
    write(tmp_path, "proc/self/cgroup", f"9:cpu:/elsewhere\n{groups}")
    write(tmp_path, f"sys/fs/cgroup/{file}", "oom 5\noom_kill 1\n")
    choices = LauncherChoice("process", "asked for"), LauncherChoice("docker", "asked for", limits=ContainerSpec())
    process, container = (choice.oom_kills() for choice in choices)
    assert (process.since(), container.since()) == (0, 0)
    write(tmp_path, "proc/vmstat", "pgfault 12\noom_kill 9\n")
    assert (process.since(), container.since()) == (0, 2)
    write(tmp_path, f"sys/fs/cgroup/{file}", "oom 5\noom_kill 2\n")
    assert (process.since(), container.since()) == (1, 2)
    # Another count would be another number.
    (tmp_path / "sys/fs/cgroup" / file).unlink()
    assert process.since() == 0


def test_what_the_kernel_hides_counts_as_none(tmp_path: Path) -> None:
    """Without a group that counts it is the machine; old kernels count neither."""
    assert OomKills(in_group=True, root=tmp_path).since() == 0
    write(tmp_path, "proc/vmstat", "pgfault 12\n")
    assert OomKills(in_group=True, root=tmp_path).since() == 0
    write(tmp_path, "proc/vmstat", "oom_kill 1\n")
    kills = OomKills(in_group=True, root=tmp_path)
    write(tmp_path, "proc/vmstat", "oom_kill 2\n")
    assert kills.since() == 1
