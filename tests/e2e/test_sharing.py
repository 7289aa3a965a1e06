"""A machine that others use too: real coordinators of real users, simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from command import SMALL, Command, check_of, on_gpus, wait_for
from fake_nvml import FakeGpu, FakeProcess
from unprivileged import OTHER_UID

FIRST, SECOND = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
INTERRUPTED = 130
# Idle until its own runner comes; then what that runner has on it.
RUNNER = FakeProcess(0)
# Passes of half a second.
SHORT = (*SMALL, "--set", "warmup.passes=0", "--set", "fake.step_s=0.05", "--max-output-tokens", "5")


@pytest.fixture
def leases(tmp_path: Path) -> dict[str, str]:
    return {"WATTDOCK_LEASES": str(tmp_path / "home" / "leases")}


def test_two_coordinators_of_two_users_never_measure_at_once(
    wattdock: Command, other: Command, leases: dict[str, str]
) -> None:
    """Who does not wait is told who measures; who waits measures after."""
    env = on_gpus(wattdock, FakeGpu(uuid=FIRST, processes=(RUNNER,)), FakeGpu(uuid=SECOND)) | leases
    as_other: dict[str, Any] = {"env": leases, "uid": OTHER_UID, "reach": [wattdock.home]}
    first = wattdock.start("run", *SHORT, "--passes", "1000", env=env, stderr=subprocess.PIPE)
    wait_for(first, "tokens in")
    view = json.loads(wattdock("gpus", "--json", env=env).stdout)
    assert view["leases"][FIRST]["command"] == "wattdock"
    assert SECOND not in view["leases"]
    refusal = other.start("run", *SMALL, stderr=subprocess.PIPE, **as_other)
    said = refusal.communicate(timeout=240)[1]
    assert refusal.returncode == 3
    assert f" {view['leases']['machine']['user']} (process" in said
    assert not other.results()
    second = other.start("run", *SHORT, "--wait", "600", stderr=subprocess.PIPE, **as_other)
    wait_for(second, "in exclusive use by")
    wattdock.interrupt()
    _, err = first.communicate(timeout=240)
    assert first.returncode == INTERRUPTED, err
    _, err = second.communicate(timeout=240)
    assert second.returncode == 0, err
    [before], [after] = wattdock.results(), other.results()
    assert max(span["end_ns"] for span in before["spans"]) <= min(span["start_ns"] for span in after["spans"])
    assert before["environment"]["leased"] == [FIRST]
    # Only root makes a folder that all users take their leases in.
    assert check_of(before, "other measurements")[0] == ("pass" if os.getuid() == 0 else "fail")
    assert check_of(before, "processes on the GPUs")[0] == "pass"
    [runner] = before["energy"]["gpu_processes"]
    assert (runner["of_runner"], runner["command"] is None) == (True, False)


def test_a_lease_removed_during_a_run_is_seen_in_the_result(wattdock: Command, leases: dict[str, str]) -> None:
    """By root or by its own user: from then on somebody else could have measured, too; nothing measured is lost."""
    running = wattdock.start("run", *SHORT, "--passes", "4", env=leases, stderr=subprocess.PIPE)
    wait_for(running, "pass 2/4")
    [lease] = Path(leases["WATTDOCK_LEASES"]).glob("machine.*.lease")
    lease.unlink()
    _, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    [result] = wattdock.results()
    status, figure = check_of(result, "other measurements")
    assert (status, str(lease) in figure) == ("fail", True)
    faults = [measured["lease_fault"] for measured in result["energy"]["passes"]]
    assert (len(faults), faults[-1] is None) == (4, False)
    if os.getuid() == 0:
        assert faults[0] is None


def test_a_user_whose_leases_nobody_else_looks_at_is_told_before_and_after(wattdock: Command) -> None:
    """The run goes on where root has made no folder for all; its result does not say that it was alone."""
    alone = wattdock.home / "alone"
    done = wattdock("run", *SHORT, env={"WATTDOCK_LEASES": str(alone)})
    assert done.returncode == 0, done.stderr
    told = f"other users' measurements are not seen: leases lie in {alone}; as root: "
    [line] = [line for line in done.stderr.splitlines() if "other users" in line]
    assert told in line
    [result] = wattdock.results()
    status, figure = check_of(result, "other measurements")
    assert (status, told in figure) == ("fail", True)
    assert f"leases unknown: {told}" in wattdock("gpus", env={"WATTDOCK_LEASES": str(alone)}).stdout.replace("\n", " ")


def test_strangers_who_load_the_cpus_are_seen_in_the_result(wattdock: Command) -> None:
    """They use no GPU and hold no lease; the figure may not be published."""
    running = wattdock.start("run", *SHORT, "--min-duration-s", "2", stderr=subprocess.PIPE)
    wait_for(running, "begins (left: ")
    spins = [sys.executable, "-c", "while True: pass"]
    strangers = [subprocess.Popen(spins) for _ in os.sched_getaffinity(0)]
    try:
        wait_for(running, "tokens in")
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()
    _, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    [result] = wattdock.results()
    assert check_of(result, "CPU use by others")[0] == "fail"
    assert result["energy"]["passes"][0]["cpu_others_share"] > 0.1


def test_a_foreign_process_that_appears_mid_run_is_flagged_by_name(wattdock: Command) -> None:
    """On our GPU it spoils the figure; on another one it is told."""
    late = FakeProcess(1, beside_runner=True)
    env = on_gpus(wattdock, FakeGpu(uuid=FIRST, processes=(RUNNER, late)), FakeGpu(uuid=SECOND, processes=(late,)))
    done = wattdock("run", *SHORT, env=env)
    assert done.returncode == 0, done.stderr
    [result] = wattdock.results()
    status, figure = check_of(result, "processes on the GPUs")
    assert status == "fail"
    assert "process 1 (root, " in figure
    assert FIRST in figure
    assert check_of(result, "other GPUs")[0] == "warn"
