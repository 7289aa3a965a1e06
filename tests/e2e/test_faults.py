"""Bad input and broken runners: one clear line, the right exit code, no traceback, nothing left running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from command import SMALL, on_gpus, wait_for
from fake_nvml import FakeGpu
from inputs import tiny

if TYPE_CHECKING:
    from command import Command

CONFIG, PREFLIGHT, RUNNER, METER, INTERRUPTED = 2, 3, 5, 6, 130
# Long enough to be interrupted in; each step of the fake engine takes this long.
SLOW = ("--set", "fake.step_s=0.05", "--max-output-tokens", "400")


def assert_one_clear_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("wattdock: ")]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def test_an_unknown_engine_argument_is_refused_by_the_engine_with_the_nearest_name(wattdock: Command) -> None:
    """Only the runner knows its engine's arguments; its refusal is still a mistake in the config."""
    done = wattdock("run", *SMALL, "--set", "fake.step_z=1")
    assert_one_clear_line(done, CONFIG, "step_z", "step_s")
    assert wattdock.left_after(5) == []


def test_what_this_user_may_not_read_or_write_is_refused(wattdock: Command) -> None:
    """As an unprivileged user, before anything is started: weights, and the folder of results."""
    folder = tiny.write(wattdock.folder / "model")
    (folder / "model.safetensors").chmod(0o000)
    done = wattdock("run", *SMALL[:2], "--model", "./model")
    assert_one_clear_line(done, PREFLIGHT, "model.safetensors", "Permission denied")
    done = wattdock("run", *SMALL, "--output-dir", "/usr/results")
    assert_one_clear_line(done, PREFLIGHT, "/usr/results", "--output-dir")


@pytest.mark.parametrize(
    ("fault", "stage", "words"),
    [
        ("load_fault=raise", "load", ("told to fail",)),
        ("load_fault=oom", "load", ("memory",)),
        ("pass_fault=die", "warm-up", ("died", "70")),
    ],
)
def test_a_runner_that_fails_leaves_a_result_with_its_reason(
    wattdock: Command, fault: str, stage: str, words: tuple[str, ...]
) -> None:
    """Stage, kind, message and the runner's last lines are stored; nothing runs on."""
    done = wattdock("run", *SMALL, "--set", f"fake.{fault}")
    assert_one_clear_line(done, RUNNER, *words)
    [result] = wattdock.results()
    assert result["status"] == "failed"
    assert result["error"]["stage"].startswith(stage)
    assert result["error"]["log_tail"]
    assert wattdock.left_after(5) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("fake.pass_fault=hang", "timeouts.heartbeat_s=2", "timeouts.stop_s=1"), ("silent",)),
        (("fake.load_fault=hang", "timeouts.load_s=2", "timeouts.stop_s=1"), ("silent",)),
        (("fake.step_s=1000", "timeouts.stall_s=2"), ("produced nothing", "stall_s")),
    ],
)
def test_a_runner_that_hangs_is_killed_after_its_timeout(
    wattdock: Command, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """A stopped process answers nothing and ignores SIGTERM; an engine that hangs still sends heartbeats."""
    done = wattdock("run", *SMALL, *(word for setting in settings for word in ("--set", setting)))
    assert_one_clear_line(done, RUNNER, *words)
    assert [result["status"] for result in wattdock.results()] == ["failed"]
    assert wattdock.left_after(5) == []


def test_a_child_that_left_its_session_ends_with_the_runner(wattdock: Command) -> None:
    """Engines start workers; killing the process group alone would leave this one."""
    done = wattdock("run", *SMALL, "--set", "fake.pass_fault=orphan")
    assert done.returncode == 0, done.stderr
    assert wattdock.left_after(5) == []


def test_an_interrupt_while_the_meter_stops_costs_nothing(wattdock: Command) -> None:
    """The last pass is over and its result is whole: nothing was left to interrupt."""
    env = on_gpus(wattdock, FakeGpu())
    running = wattdock.start("run", *SMALL, env=env, stderr=subprocess.PIPE)
    wait_for(running, "tokens in")
    time.sleep(0.5)
    wattdock.interrupt()
    _, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    [result] = wattdock.results()
    assert result["status"] == "ok"
    assert len(result["energy"]["passes"]) == 1
    assert result["energy"]["total_j"] > 0


def test_a_run_that_is_terminated_keeps_the_passes_it_had(wattdock: Command) -> None:
    """SIGTERM in the second pass stores the first, and exits with 130."""
    running = wattdock.start(
        "run", *SMALL[:4], "--batch-size", "4", "--passes", "50", *SLOW[:2], stderr=subprocess.PIPE
    )
    wait_for(running, "tokens in")
    wattdock.interrupt(signal.SIGTERM)
    _, err = running.communicate(timeout=240)
    assert running.returncode == INTERRUPTED, err
    assert "Traceback" not in err
    [result] = wattdock.results()
    assert result["status"] == "interrupted"
    assert len(result["energy"]["passes"]) >= 1
    assert result["performance"]["output_tokens"] > 0
    assert wattdock.left_after(5) == []


@pytest.mark.parametrize("fault", ["none", "orphan"])
def test_nothing_outlives_a_coordinator_that_was_killed(wattdock: Command, fault: str) -> None:
    """SIGKILL gives it no chance to clean up; the keeper does."""
    running = wattdock.start("run", *SMALL, *SLOW, "--set", f"fake.pass_fault={fault}", stderr=subprocess.PIPE)
    wait_for(running, "warm-up")
    wattdock.interrupt(signal.SIGKILL)
    running.wait(10)
    assert running.stderr is not None
    running.stderr.close()
    assert wattdock.left_after(15) == []
    assert list((wattdock.home / "tmp").glob("wattdock-run-*"))
    assert wattdock("run", *SMALL).returncode == 0
    assert list((wattdock.home / "tmp").iterdir()) == [], "the next run sweeps what the killed one left"


def test_a_runner_in_another_time_namespace_is_refused(wattdock: Command) -> None:
    """Its spans would lie an hour off the meter's timeline."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("making a time namespace needs root and unshare")
    elsewhere = wattdock.home / "python"
    elsewhere.write_text(f'#!/bin/sh\nexec unshare --user --time --monotonic 3600 --fork {sys.executable} "$@"\n')
    elsewhere.chmod(0o755)
    done = wattdock("run", *SMALL, "--set", f"runner_python={elsewhere}", "--set", "timeouts.stop_s=1")
    assert_one_clear_line(done, METER, "time namespace")
    [result] = wattdock.results()
    assert result["energy"]["total_j"] is None
    assert result["environment"]["clock"]["trusted"] is False
    assert wattdock.left_after(5) == []
