"""A killed study that is gone on with: the joules from before, after a reboot, and on other GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from command import on_gpus
from e2e.test_study import SLOW, wait_in_pass, write
from fake_nvml import FakeGpu

if TYPE_CHECKING:
    from command import Command

PREFLIGHT = 3
# What a fake GPU draws, and how many standard uncertainties of their timing joules may be off by.
IDLE_W, DEVIATIONS = 80, 4


def assert_idle_power(row: dict[str, Any]) -> None:
    """See that every pass's joules are those of the GPU's constant power, as near as the result says they are."""
    for one in row["energy"]["passes"]:
        assert one["total_j"] == pytest.approx(IDLE_W * one["duration_s"], abs=DEVIATIONS * one["timing_j"])
        assert one["timing_j"] < 0.1 * one["total_j"]


def killed_in_its_second_pass(wattdock: Command, env: dict[str, str]) -> str:
    """Begin a study, kill its coordinator once a pass is kept, and return the name of its file."""
    file = write(wattdock, SLOW)
    running = wattdock.start("run", file, "--progress-json", env=env, stderr=subprocess.PIPE)
    wait_in_pass(running, 2)
    wattdock.interrupt(signal.SIGKILL)
    running.communicate(timeout=60)
    return file


def test_passes_from_before_and_after_a_reboot_are_each_read_by_their_own_clock(wattdock: Command) -> None:
    """A time namespace is what a reboot is to CLOCK_MONOTONIC: another zero. Both halves' instants overlap."""
    behind_s = round(time.monotonic()) - 60
    reboot = ("unshare", "--time", "--monotonic", f"-{behind_s}", "--fork", "--kill-child")
    if os.getuid() != 0 or subprocess.run([*reboot, "true"], capture_output=True).returncode:
        pytest.skip("another clock needs root and a kernel with time namespaces")
    env = on_gpus(wattdock, FakeGpu())
    file = killed_in_its_second_pass(wattdock, env)
    # It also takes back what somebody had set. The GPU's course begins with the new clock.
    env = on_gpus(wattdock, FakeGpu(power_limit_w=650.0), origin_ns=0)
    resumed = wattdock.start("run", file, "--resume", env=env, stderr=subprocess.PIPE, within=reboot)
    _, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    [row] = wattdock.results()
    measured = [span for span in row["spans"] if span["pass"] is not None]
    assert [span["clock"] for span in measured] == [0, 1, 1]
    assert measured[1]["start_ns"] < measured[0]["start_ns"] - 60 * 10**9
    assert len(row["environment"]["clock"]["identities"]) == 2
    [check] = [one for one in row["audit"]["checks"] if one["name"] == "one environment in all restarts"]
    assert check["status"] == "fail"
    assert check["figure"] == "GPU power limit, W: 700.0 (restart 1), 650.0 (restart 1)"
    joules = [one["total_j"] for one in row["energy"]["passes"]]
    assert_idle_power(row)
    [folder] = (wattdock.folder / "results").glob("2*")
    again = wattdock("show", folder, "--window", "drained", "--json")
    assert again.returncode == 0, again.stderr
    assert [one["total_j"] for one in json.loads(again.stdout)["passes"]] == pytest.approx(joules)
    drawn = wattdock("report", folder, "-o", "report.html")
    assert drawn.returncode == 0, drawn.stderr
    assert "1, after a reboot" in (wattdock.folder / "report.html").read_text()
