"""Bad input and broken runners: one clear line, the right exit code, no traceback, nothing left running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, on_gpus, one_line, wait_for
from fake_nvml import FakeGpu, uuid_of
from make import models as tiny
from unprivileged import popen_as_user

if TYPE_CHECKING:
    from command import Command

CONFIG, PREFLIGHT, LAUNCH, RUNNER, METER, INTERRUPTED = 2, 3, 4, 5, 6, 130
OWN_SOCKET = "unix:///var/run/docker.sock"
# Long enough to be interrupted in; each step of the fake engine takes this long.
SLOW = ("--set", "fake.step_s=0.05", "--max-output-tokens", "400")


def test_an_unknown_engine_argument_is_refused_by_the_engine_with_the_nearest_name(wattdock: Command) -> None:
    """Only the runner knows its engine's arguments; its refusal is still a mistake in the config."""
    done = wattdock("run", *SMALL, "--set", "fake.step_z=1")
    one_line(done, CONFIG, "step_z", "step_s")
    assert wattdock.left_after() == []


def test_what_this_user_may_not_read_or_write_is_refused(wattdock: Command) -> None:
    """As an unprivileged user, before anything is started: weights, and the folder of results."""
    folder = tiny.write(wattdock.folder / "model")
    (folder / "model.safetensors").chmod(0o000)
    done = wattdock("run", *SMALL[:2], "--model", "./model")
    one_line(done, PREFLIGHT, "model.safetensors", "Permission denied")
    done = wattdock("run", *SMALL, "--output-dir", "/usr/results")
    one_line(done, PREFLIGHT, "/usr/results", "--output-dir")
    # What lies in this folder cannot even be asked after.
    (wattdock.folder / "closed").mkdir(0)
    said = f"cannot write to closed/x: permission denied in {wattdock.folder}/closed; choose another folder with"
    for words in (("run", *SMALL), ("plan", *SMALL), ("measure", "--", "true")):
        options = ("--output-dir", "closed/x")
        done = wattdock(words[0], *options, *words[1:])
        one_line(done, PREFLIGHT, said)
    on_file = wattdock("plan", *SMALL, "--output-dir", "/etc/passwd")
    one_line(on_file, PREFLIGHT, "/etc/passwd is a file; choose another folder with --output-dir")


def test_a_runner_that_dies_leaves_a_result_with_its_reason(wattdock: Command) -> None:
    """Stage, kind, message and the runner's last lines are stored; nothing runs on."""
    done = wattdock("run", *SMALL, "--set", "fake.pass_fault=die")
    one_line(done, RUNNER, "died", "70")
    [result] = wattdock.results()
    assert (result["status"], result["error"]["stage"]) == ("failed", "warm-up 1/1")
    assert result["error"]["log_tail"]
    assert wattdock.left_after() == []


def test_a_runner_that_hangs_is_killed_after_its_timeout(wattdock: Command) -> None:
    """A stopped process answers nothing and ignores SIGTERM."""
    limits = ("--set", "timeouts.heartbeat_s=2", "--set", "timeouts.stop_s=1")
    done = wattdock("run", *SMALL, "--set", "fake.pass_fault=hang", *limits)
    one_line(done, RUNNER, "silent")
    assert [result["status"] for result in wattdock.results()] == ["failed"]
    assert wattdock.left_after() == []


def test_a_replica_killed_mid_pass_is_a_classified_result_and_no_process_is_left(wattdock: Command) -> None:
    """One of two real processes, each with a simulated GPU."""
    env = on_gpus(wattdock, FakeGpu(uuid=uuid_of(1)), FakeGpu(uuid=uuid_of(2)))
    words = (*SMALL, "--gpus", "0,1", "--min-duration-s", "600", "--set", "fake.data_parallel_size=2")
    running = wattdock.start("run", *words, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for(running, "begins (left: ")
    replicas = [pid for pid, line in wattdock.processes().items() if "wattdock_runner.worker" in line]
    assert len(replicas) == 2
    os.kill(replicas[0], signal.SIGKILL)
    _, err = running.communicate(timeout=240)
    assert running.returncode == RUNNER, err
    [result] = wattdock.results()
    assert result["error"]["cause"] == "worker died"
    assert "SIGKILL" in result["error"]["message"]
    assert result["environment"]["runner"]["parallelism"]["kind"] == "data"
    assert wattdock.left_after() == []


def test_a_run_that_is_terminated_keeps_the_passes_it_had(wattdock: Command) -> None:
    """SIGTERM in a later pass stores the first, and exits with 130; what stores it does without pandas."""
    words = (*SMALL, "--passes", "1000", "--set", "fake.step_s=0.05", "--max-output-tokens", "4")
    running = wattdock.start("run", *words, stderr=subprocess.PIPE)
    wait_for(running, "tokens in")
    wait_for(running, "tokens in")
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in wattdock.processes()]
    assert [any(package in text for text in maps) for package in ("/pyarrow/", "/pandas/")] == [True, False]
    wattdock.interrupt(signal.SIGTERM)
    _, err = running.communicate(timeout=240)
    assert running.returncode == INTERRUPTED, err
    assert "Traceback" not in err
    [result] = wattdock.results()
    assert result["status"] == "interrupted"
    assert len(result["energy"]["passes"]) >= 1
    assert result["performance"]["output_tokens"] > 0
    assert wattdock.left_after() == []


def test_nothing_outlives_a_coordinator_that_was_killed(wattdock: Command) -> None:
    """SIGKILL gives it no chance to clean up; the keeper does, and the leases are free then."""
    running = wattdock.start("run", *SMALL, *SLOW, "--set", "fake.pass_fault=orphan", stderr=subprocess.PIPE)
    wait_for(running, "warm-up")
    wattdock.interrupt(signal.SIGKILL)
    running.wait(10)
    assert running.stderr is not None
    running.stderr.close()
    assert wattdock.left_after() == []
    assert list((wattdock.home / "tmp").glob("wattdock-run-*"))
    assert wattdock("run", *SMALL).returncode == 0
    assert list((wattdock.home / "tmp").iterdir()) == [], "the next run sweeps what the killed one left"


def test_a_keeper_that_is_killed_with_its_coordinator_leaves_a_folder_until_the_next_run(wattdock: Command) -> None:
    """A runner's socket lies in it; the kernel ends the runner."""
    with wattdock.start("run", *SMALL, *SLOW, stderr=subprocess.PIPE) as running:
        wait_for(running, "warm-up")
        keepers = [pid for pid, line in wattdock.processes().items() if "keeper.py" in line]
        wattdock.interrupt(signal.SIGSTOP)
        for pid in keepers:
            os.kill(pid, signal.SIGKILL)
        wattdock.interrupt(signal.SIGKILL)
    assert keepers
    assert wattdock.left_after() == []
    left = sorted(path.name.startswith("wattdock-run-") for path in (wattdock.home / "tmp").iterdir())
    assert left == [False, True], "of the runner and of the coordinator"
    assert wattdock("run", *SMALL).returncode == 0
    assert list((wattdock.home / "tmp").iterdir()) == []


# Begins to store a result, and stops before the folder gets its name.
STORING = """
import sys
from pathlib import Path
from wattdock.analysis import ExperimentResult
from wattdock.config import ExperimentConfig
from wattdock.records import RestartRecord
from wattdock.store import folders
folders.sync = lambda path: (print(path, flush=True), sys.stdin.read())
result = ExperimentResult.bare(ExperimentConfig(), None, started_utc="2026-01-01T00:00:00+00:00")
folders.store_result(result, [(RestartRecord(0), None)], log=Path("none"), output_dir=Path("results"))
"""


def test_a_kill_while_a_result_is_stored_leaves_nothing_behind_the_next_run_or_reap(wattdock: Command) -> None:
    """What another command is storing stays, whatever is cleared meanwhile."""
    words, env = [sys.executable, "-c", STORING], wattdock.env()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    storing = [popen_as_user(words, env=env, cwd=wattdock.folder, **pipes) for _ in range(3)]
    lines = [process.stdout.readline() for process in storing if process.stdout]
    folders = [wattdock.folder / "/".join(line.split("/")[:2]) for line in lines]
    assert all(folder.name[0] == "." and folder.is_dir() for folder in folders)
    storing[0].kill()
    storing[0].communicate(timeout=60)
    reaped = wattdock("reap")
    assert f"removed: results/{folders[0].name}\n" in reaped.stdout
    assert [folder.exists() for folder in folders] == [False, True, True]
    storing[1].kill()
    storing[1].communicate(timeout=60)
    run = wattdock("run", *SMALL)
    assert (run.returncode, f"removed results/{folders[1].name}: " in run.stderr) == (0, True), run.stderr
    assert [folder.exists() for folder in folders] == [False, False, True]
    storing[2].communicate(timeout=60)
    assert sorted(path.name.split("-")[1] for path in (wattdock.folder / "results").glob("2*")) == ["fake", "pytorch"]
    assert list((wattdock.folder / "results").glob(".*")) == []


@pytest.mark.skipif(os.path.lexists(OWN_SOCKET[7:]), reason="Docker's own socket is here")
def test_reap_is_done_without_an_engine_but_not_without_the_one_that_is_named(wattdock: Command) -> None:
    """Who measures processes only has no engine to start."""
    for env in ({}, {"DOCKER_CONTEXT": "default"}):
        done = wattdock("reap", env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "this machine has no container engine\n", "")
    for address in (OWN_SOCKET, "unix:///absent.sock"):
        done = wattdock("reap", env={"DOCKER_HOST": address})
        one_line(done, PREFLIGHT, f"no Docker engine answers at {address}; start a container engine")


def test_an_interrupted_load_that_does_not_end_is_killed_soon(wattdock: Command) -> None:
    """Long before the runner itself would give its engine up, or `timeouts.stop_s` ends."""
    running = wattdock.start("run", *SMALL, "--set", "fake.load_s=600", stderr=subprocess.PIPE)
    wait_for(running, "pretending to load")
    wattdock.interrupt(signal.SIGTERM)
    _, err = running.communicate(timeout=240)
    assert running.returncode == INTERRUPTED, err
    [result] = wattdock.results()
    assert result["status"] == "interrupted"
    assert wattdock.left_after() == []


def test_a_pass_without_energy_on_a_gpu_ends_with_the_meters_code_and_is_kept(wattdock: Command) -> None:
    """What was measured is stored; without a meter by choice nothing is missing."""
    gpu = FakeGpu(unsupported="energy samples power power_instant power_average")
    env, settings = on_gpus(wattdock, gpu), ("--min-requests", "2", "--set", "warmup.passes=0")
    done = wattdock("run", *SMALL, *settings, "--max-output-tokens", "20", env=env)
    one_line(done, METER, "no energy counter", gpu.uuid, "wattdock doctor")
    [result] = wattdock.results()
    assert (result["status"], result["error"]["kind"], result["error"]["exit_code"]) == ("failed", "MeterError", METER)
    assert result["performance"]["output_tokens"] == 2 * 20
    [measured] = result["energy"]["passes"]
    assert not measured["total_j"]
    again = wattdock("run", *SMALL, *settings, "--meter", "none", env=env)
    assert again.returncode == 0, again.stderr


def test_a_runner_in_another_time_namespace_is_refused(wattdock: Command) -> None:
    """Its spans would lie an hour off the meter's timeline."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("making a time namespace needs root and unshare")
    elsewhere = wattdock.home / "python"
    elsewhere.write_text(f'#!/bin/sh\nexec unshare --user --time --monotonic 3600 --fork {sys.executable} "$@"\n')
    elsewhere.chmod(0o755)
    done = wattdock("run", *SMALL, "--set", f"runner_python={elsewhere}", "--set", "timeouts.stop_s=1")
    one_line(done, METER, "time namespace")
    [result] = wattdock.results()
    assert result["energy"]["total_j"] is None
    assert result["environment"]["clock"]["trusted"] is False
    assert wattdock.left_after() == []


def test_a_runner_that_takes_the_last_of_the_memory_is_ended_before_the_machine_thrashes(wattdock: Command) -> None:
    """Its row says so. Of 20 GB, 10 MB are left, by a file that stands for the kernel's."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("a file in place of /proc/meminfo needs root and unshare")
    full = wattdock.home / "meminfo"
    full.write_text("MemTotal: 20000000 kB\nMemAvailable: 10000 kB\n")
    within = ("unshare", "--mount", "sh", "-c", f'mount --bind {full} /proc/meminfo && exec "$@"', "sh")
    words = (*SMALL, *SLOW)
    running = wattdock.start("run", *words, within=within, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, err = running.communicate(timeout=120)
    # It may be in a pass before its keeper looks for the second time.
    assert running.returncode in (LAUNCH, RUNNER), err
    [result] = wattdock.results()
    assert result["error"]["cause"] == "out of host memory"
    assert wattdock.left_after() == []
