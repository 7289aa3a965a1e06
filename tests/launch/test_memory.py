"""What a keeper takes for the memory that is left: the machine's, or a control group's that allows less."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from seams.launch import memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

GB = 1_000_000_000
MEMINFO = f"MemTotal: {20 * GB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {8 * GB // 1024} kB\n"
NO_LIMIT = "9223372036854771712"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def machine(root: Path, groups: str) -> None:
    write(root / "proc", meminfo=MEMINFO)
    write(root / "proc/self", cgroup=groups)


@pytest.mark.parametrize(
    ("most", "use", "expected"),
    [
        ("max", "5", (20, 8)),
        (str(6 * GB), str(2 * GB), (6, 5)),
        (str(30 * GB), str(2 * GB), (20, 8)),
    ],
)
def test_a_group_around_this_process_counts_where_it_leaves_less(
    tmp_path: Path, most: str, use: str, expected: tuple[int, int]
) -> None:
    """Two of 6 GB are used, and 1 of them are a file's pages, which go when they are needed."""
    machine(tmp_path, "0::/user.slice/session-1.scope\n")
    group = tmp_path / "sys/fs/cgroup/user.slice"
    write(group, memory__max=most, memory__current=use, memory__stat=f"anon 5\ninactive_file {GB}\n")
    write(group / "session-1.scope", memory__max="max", memory__current="1", memory__stat="inactive_file 0\n")
    assert memory_bytes(tmp_path) == pytest.approx(tuple(GB * size for size in expected), rel=1e-6)


def test_a_group_of_the_first_version_counts_too(tmp_path: Path) -> None:
    """Of another namespace's path only what is above it is there; another controller's limits are none of memory."""
    machine(tmp_path, "4:memory:/docker/abc\n3:cpuset:/\n0::/\n")
    top = tmp_path / "sys/fs/cgroup/memory"
    write(top, memory__limit_in_bytes=str(3 * GB), memory__usage_in_bytes=str(GB), memory__stat="total_inactive_file 0")
    assert memory_bytes(tmp_path) == (3 * GB, 2 * GB)
    write(top, memory__limit_in_bytes=NO_LIMIT)
    assert memory_bytes(tmp_path) == pytest.approx((20 * GB, 8 * GB), rel=1e-6)


def test_without_proc_there_is_no_limit(tmp_path: Path) -> None:
    """Unknown must not refuse anything."""
    assert memory_bytes(tmp_path) == (inf, inf)
