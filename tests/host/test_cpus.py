"""Whose work the CPUs do: on a made-up /proc, and on the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from wattdock.doctor.machine import load_finding
from wattdock.host.cpus import PROC, CpuTimes, busiest_process, cpu_times, process_times

if TYPE_CHECKING:
    from pathlib import Path

SPIN = "while True: pass"


def test_ticks_are_read_as_proc_5_lays_them_out(tmp_path: Path) -> None:
    """Steal is busy, waiting for disks is not, guests count once; a name may hold brackets and spaces."""
    (tmp_path / "stat").write_text("cpu  100 10 50 1000 200 3 4 33 70 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    for pid, name, ticks in ((7, "python", "20 5 3 2"), (8, "a) R (b", "10 0 0 0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S 1 7 7 0 -1 4194304 1 2 3 4 {ticks} 20 0 1 0\n")
    assert cpu_times((7, 8), tmp_path) == CpuTimes(busy=200, total=1400, own=40)
    assert cpu_times((7, 9), tmp_path) == CpuTimes(busy=200, total=1400, own=30), "one that ended is left out"
    assert cpu_times((9,), tmp_path) == CpuTimes(busy=200, total=1400, own=None)
    assert cpu_times((7,), tmp_path / "nowhere") is None
    assert process_times(tmp_path) == {7: 30, 8: 10}


@pytest.mark.parametrize(
    ("earlier", "later", "others"),
    [
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 130), 0.1),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 150), 0.0),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 180), 0.0),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1200, 20), 0.5),
        (CpuTimes(100, 1000, None), CpuTimes(200, 1200, 20), None),
        (CpuTimes(100, 1000, 50), CpuTimes(200, 1000, 60), None),
    ],
)
def test_what_was_busy_and_not_ours_is_others(earlier: CpuTimes, later: CpuTimes, others: float | None) -> None:
    """Between none and all of it, whatever rounding or an ended process did to our own ticks."""
    share = later.others_share_since(earlier)
    assert share == (None if others is None else pytest.approx(others))


def test_the_busiest_process_is_the_one_that_gained_most() -> None:
    """Also one that began meanwhile; nobody where nobody did anything."""
    assert busiest_process({1: 1000, 2: 5}, {1: 1001, 2: 30, 3: 10}) == 2
    assert busiest_process({1: 1000}, {1: 1000, 3: 10}) == 3
    assert busiest_process({1: 1000}, {1: 1000}) is None


def test_a_process_that_spins_is_ours_or_another_s() -> None:
    """The same real load, by whether its pid is among our own."""
    with subprocess.Popen([sys.executable, "-c", SPIN]) as spinning:
        try:
            ours, not_ours = (os.getpid(), spinning.pid), (os.getpid(),)
            before = cpu_times(ours), cpu_times(not_ours)
            time.sleep(1)
            after = cpu_times(ours), cpu_times(not_ours)
            finding = load_finding(PROC)
        finally:
            spinning.kill()
    pairs = zip(before, after, strict=True)
    others, others_and_it = (later.others_share_since(earlier) or 0 for earlier, later in pairs if earlier and later)
    assert others_and_it > others
    assert "busy with other work" in finding.value
    if finding.status == "warn":
        assert "most of it process" in finding.value
