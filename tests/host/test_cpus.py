"""Whose work the CPUs do."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from launch.standins import wait_until
from seams.host import CpuTimes, cpu_times, times_around

if TYPE_CHECKING:
    from pathlib import Path


def test_ticks_are_read_as_proc_5_lays_them_out(tmp_path: Path) -> None:
    """Steal is busy, waiting for disks is not, guests count once; a name may hold brackets and spaces."""
    first, second = "80 10 40 500 100 3 4 33 70 5", "20 0 10 500 100 0 0 0 0 0"
    (tmp_path / "stat").write_text(f"cpu  100 10 50 1000 200 3 4 33 70 5\ncpu0 {first}\ncpu1 {second}\nintr 5 6\n")
    for pid, name, ticks in ((7, "python", "20 5 3 2"), (8, "a) R (b", "10 0 0 0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S 1 7 7 0 -1 4194304 1 2 3 4 {ticks} 20 0 1 0\n")
    assert cpu_times(proc=tmp_path) == CpuTimes(busy=200, total=1400, stolen=33)
    assert cpu_times([1], measurement_ticks=7, proc=tmp_path) == CpuTimes(busy=30, total=630, measurement_ticks=7)
    assert cpu_times(proc=tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("earlier", "later", "share"),
    [
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 130), 0.1),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 150), 0.0),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 180), 0.0),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 20), None),
        (CpuTimes(100, 1000, None), CpuTimes(200, 1200, 20), None),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1000, 60), None),
    ],
)
def test_what_was_busy_and_not_ours_is_others(earlier: CpuTimes, later: CpuTimes, share: float | None) -> None:
    """Never less than none; unknown where our own ticks are, or fell because a process took them with it."""
    found = later.others_share_since(earlier)
    assert found == (None if share is None else pytest.approx(share))


def test_where_the_runner_is_not_to_be_seen_nobody_knows_whose_work_it_was() -> None:
    """Other processes have its numbers, as in a container with ids of its own; or none has."""
    program = "import sys; sys.stdin.read()"
    commands = [[sys.executable, "-c", program, *more] for more in ([], ["-m", "wattdock_runner"])]
    stranger, runner = (subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands)
    with stranger, runner:
        wait_until(lambda: times_around([runner.pid]))
        assert times_around([stranger.pid]) is None
    assert times_around([2**22 + 1]) is None
    assert times_around([]) is None
