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
from command import SMALL, on_gpus
from fake_nvml import FakeGpu
from inputs import tiny

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command

CONFIG, PREFLIGHT, RUNNER, METER, STORE, INTERRUPTED = 2, 3, 5, 6, 7, 130
# Long enough to be interrupted in; each step of the fake engine takes this long.
SLOW = ("--set", "fake.step_s=0.05", "--max-output-tokens", "400")


def assert_one_clear_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("wattdock: ")]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--backend", "pytorhc"), CONFIG, ("pytorhc", "pytorch")),
        (("--batch-size", "0"), CONFIG, ("--batch-size", "0")),
        (("--model", "./nowhere"), PREFLIGHT, ("nowhere",)),
        (("--model", "shape:tiny-lama"), CONFIG, ("tiny-lama", "tiny-llama")),
        (("--gpus", "7"), PREFLIGHT, ("7", "GPU")),
        (("--gpus", "GPU-none"), PREFLIGHT, ("GPU-none",)),
        (("--gpus", "count:2"), PREFLIGHT, ("2 GPU",)),
        (("--accelerator", "cuda"), PREFLIGHT, ("GPU",)),
        (("--launcher", "docker"), PREFLIGHT, ("docker", "--launcher process")),
        (("--meter", "nvml"), PREFLIGHT, ("nvml", "--meter none")),
        (("--prompts", "nofile.jsonl"), CONFIG, ("nofile.jsonl",)),
        (("--prompts", "bundled"), CONFIG, ("tokenizer", "synthetic")),
        (("--set", "workload.seed"), CONFIG, ("NAME=VALUE",)),
        (("--set", "workload.sede=1"), CONFIG, ("sede", "seed")),
        (("nofile.yaml",), CONFIG, ("nofile.yaml",)),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    wattdock: Command, args: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    """The line holds the value seen; no row is stored, since nothing was attempted."""
    done = wattdock("run", *SMALL, *args)
    assert_one_clear_line(done, code, *words)
    assert wattdock.results() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload:\n  batch_sise: 2\n", ("x.yaml:2", "batch_size")),
        ("workload: [\n", ("x.yaml:2", "fix the YAML")),
    ],
)
def test_a_bad_file_is_refused_with_its_line(wattdock: Command, text: str, words: tuple[str, ...]) -> None:
    """Whoever wrote the file finds the place."""
    (wattdock.folder / "x.yaml").write_text(text)
    assert_one_clear_line(wattdock("run", "x.yaml"), CONFIG, *words)


def test_an_unknown_engine_argument_is_refused_by_the_engine_with_the_nearest_name(wattdock: Command) -> None:
    """Only the runner knows its engine's arguments; its refusal is still a mistake in the config."""
    done = wattdock("run", *SMALL, "--set", "fake.step_z=1")
    assert_one_clear_line(done, CONFIG, "step_z", "step_s")
    assert wattdock.left_after(5) == []


def test_an_interpreter_that_cannot_run_a_runner_is_refused(wattdock: Command) -> None:
    """Checked before anything is started."""
    done = wattdock("run", *SMALL, "--set", "runner_python=/bin/true")
    assert_one_clear_line(done, PREFLIGHT, "/bin/true")


def test_weights_that_this_user_may_not_read_are_refused(wattdock: Command) -> None:
    """As an unprivileged user, before anything is started."""
    folder = tiny.write(wattdock.folder / "model")
    (folder / "model.safetensors").chmod(0o000)
    done = wattdock("run", *SMALL[:2], "--model", "./model")
    assert_one_clear_line(done, PREFLIGHT, "model.safetensors", "Permission denied")


def test_an_unwritable_output_folder_is_refused(wattdock: Command) -> None:
    """As an unprivileged user, before anything is started."""
    done = wattdock("run", *SMALL, "--output-dir", "/usr/results")
    assert_one_clear_line(done, PREFLIGHT, "/usr/results", "--output-dir")


def test_a_socket_path_that_is_too_long_is_refused_by_name(wattdock: Command) -> None:
    """The kernel would only say that the address is invalid."""
    deep = wattdock.home / ("d" * 90)
    deep.mkdir(mode=0o777)
    deep.chmod(0o777)
    done = wattdock("run", *SMALL, env={"XDG_RUNTIME_DIR": str(deep)})
    assert_one_clear_line(done, PREFLIGHT, "d" * 90, "XDG_RUNTIME_DIR")


@pytest.mark.parametrize(
    ("fault", "stage", "words"),
    [
        ("load_fault=die", "load", ("died", "70")),
        ("load_fault=raise", "load", ("told to fail",)),
        ("load_fault=oom", "load", ("memory",)),
        ("pass_fault=die", "warm-up", ("died", "70")),
        ("pass_fault=oom", "warm-up", ("memory",)),
    ],
)
def test_a_runner_that_fails_leaves_a_row_with_its_reason(
    wattdock: Command, fault: str, stage: str, words: tuple[str, ...]
) -> None:
    """Stage, kind, message and the runner's last lines are stored; nothing runs on."""
    done = wattdock("run", *SMALL, "--set", f"fake.{fault}")
    assert_one_clear_line(done, RUNNER, *words)
    [row] = wattdock.results()
    assert row["status"] == "failed"
    assert row["error"]["stage"].startswith(stage)
    assert row["error"]["log_tail"]
    assert wattdock.left_after(5) == []


@pytest.mark.parametrize(("fault", "timeout"), [("pass_fault", "heartbeat_s"), ("load_fault", "load_s")])
def test_a_runner_that_hangs_is_killed_after_its_timeout(wattdock: Command, fault: str, timeout: str) -> None:
    """SIGSTOP leaves a process that answers nothing and ignores SIGTERM."""
    hung = ("--set", f"fake.{fault}=hang", "--set", f"timeouts.{timeout}=2", "--set", "timeouts.stop_s=1")
    done = wattdock("run", *SMALL, *hung)
    assert_one_clear_line(done, RUNNER, "silent")
    assert [row["status"] for row in wattdock.results()] == ["failed"]
    assert wattdock.left_after(5) == []


def test_an_engine_that_produces_nothing_is_stopped_though_its_runner_lives(wattdock: Command) -> None:
    """Heartbeats come from another thread than the engine's and would go on for ever."""
    done = wattdock("run", *SMALL, "--set", "fake.step_s=1000", "--set", "timeouts.stall_s=2")
    assert_one_clear_line(done, RUNNER, "produced nothing", "stall_s")
    assert wattdock.left_after(5) == []


def test_a_child_that_left_its_session_ends_with_the_runner(wattdock: Command) -> None:
    """Engines start workers; killing the process group alone would leave this one."""
    done = wattdock("run", *SMALL, "--set", "fake.pass_fault=orphan")
    assert done.returncode == 0, done.stderr
    assert wattdock.left_after(5) == []


def test_an_interrupt_while_the_meter_stops_costs_nothing(wattdock: Command) -> None:
    """The last pass is over and its row is whole: nothing was left to interrupt."""
    env = on_gpus(wattdock, FakeGpu())
    running = wattdock.start("run", *SMALL, env=env, stderr=subprocess.PIPE)
    _wait_for_line(running, "tokens in")
    time.sleep(0.5)
    wattdock.interrupt()
    _, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    [row] = wattdock.results()
    assert row["status"] == "ok"
    assert len(row["energy"]["passes"]) == 1
    assert row["energy"]["total_j"] > 0


def test_a_run_that_is_terminated_keeps_the_passes_it_had(wattdock: Command) -> None:
    """SIGTERM in the second pass stores the first, and exits with 130."""
    running = wattdock.start(
        "run", *SMALL[:4], "--batch-size", "4", "--passes", "50", *SLOW[:2], stderr=subprocess.PIPE
    )
    _wait_for_line(running, "tokens in")
    wattdock.interrupt(signal.SIGTERM)
    _, err = running.communicate(timeout=240)
    assert running.returncode == INTERRUPTED, err
    assert "Traceback" not in err
    [row] = wattdock.results()
    assert row["status"] == "interrupted"
    assert len(row["energy"]["passes"]) >= 1
    assert row["performance"]["output_tokens"] > 0
    assert wattdock.left_after(5) == []


@pytest.mark.parametrize("fault", ["none", "orphan"])
def test_nothing_outlives_a_coordinator_that_was_killed(wattdock: Command, fault: str) -> None:
    """SIGKILL gives it no chance to clean up; the keeper does."""
    running = wattdock.start("run", *SMALL, *SLOW, "--set", f"fake.pass_fault={fault}", stderr=subprocess.PIPE)
    _wait_for_line(running, "warm-up")
    wattdock.interrupt(signal.SIGKILL)
    running.wait(10)
    assert running.stderr is not None
    running.stderr.close()
    assert wattdock.left_after(15) == []
    assert list((wattdock.home / "tmp").glob("wattdock-run-*"))
    assert wattdock("run", *SMALL).returncode == 0
    assert list((wattdock.home / "tmp").iterdir()) == [], "the next run sweeps what the killed one left"


def test_a_full_disk_loses_nothing_that_was_measured(wattdock: Command, tmp_path: Path) -> None:
    """The row goes to the temporary folder instead, and the message says so."""
    small = wattdock.folder / "results"
    small.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=51m,mode=777", "none", small]).returncode
    ):
        pytest.skip("mounting a small file system needs root and CAP_SYS_ADMIN")
    try:
        running = wattdock.start("run", *SMALL, *SLOW[:2], stderr=subprocess.PIPE)
        _wait_for_line(running, "warm-up")
        _fill(small)
        _, err = running.communicate(timeout=240)
        assert running.returncode == STORE, err
        assert "Traceback" not in err
        [rescued] = (wattdock.home / "tmp").glob("wattdock-rescued-*/*/result.json")
        assert f"{rescued.parents[1].name}/{rescued.parent.name} instead" in err
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_runner_in_another_time_namespace_is_refused(wattdock: Command) -> None:
    """Its spans would lie an hour off the meter's timeline."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("making a time namespace needs root and unshare")
    elsewhere = wattdock.home / "python"
    elsewhere.write_text(f'#!/bin/sh\nexec unshare --user --time --monotonic 3600 --fork {sys.executable} "$@"\n')
    elsewhere.chmod(0o755)
    done = wattdock("run", *SMALL, "--set", f"runner_python={elsewhere}", "--set", "timeouts.stop_s=1")
    assert_one_clear_line(done, METER, "time namespace")
    [row] = wattdock.results()
    assert row["energy"]["total_j"] is None
    assert row["environment"]["clock"]["trusted"] is False
    assert wattdock.left_after(5) == []


def _wait_for_line(running: subprocess.Popen[str], text: str) -> None:
    assert running.stderr is not None
    for line in running.stderr:
        if text in line:
            return
    pytest.fail(f"the command ended without a line that holds {text!r}")


def _fill(folder: Path) -> None:
    """Write until the disk is full, leaving the file in place."""
    with (folder / ".filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 65536)
        except OSError:
            time.sleep(0)
