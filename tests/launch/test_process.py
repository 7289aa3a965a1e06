"""Runners as processes: how they start, and that nothing of them is ever left."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from launch.standins import folder_of, left, state_of, wait_until, write_standin, zombies
from refused import raises
from seams.launch import process

from wattdock.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wattdock.launch import LaunchSpec

    Spec = Callable[[str], LaunchSpec]
    Launcher = Callable[[LaunchSpec], process.RunnerProcess]


COORDINATOR = """
import signal, sys, time
from pathlib import Path
from wattdock.launch.process import launch
from wattdock.launch.protocol import LaunchSpec
program, behaviour, folder = sys.argv[1:]
spec = LaunchSpec(backend=behaviour, runner_dir=Path(folder), log_path=Path(folder, behaviour + ".log"))
with launch(spec, python=Path(program)) as runner:
    print(runner.address, flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print("interrupted, runner", "alive" if runner.alive() else "dead", flush=True)
print("stopped:", runner.exit_reason(), flush=True)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return partial(process.launch, python=write_standin(tmp_path))


def coordinator(behaviour: str, folder: Path) -> subprocess.Popen[str]:
    """Start a coordinator as a process of its own."""
    command: list[str | Path] = [sys.executable, "-c", COORDINATOR, write_standin(folder), behaviour, folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def until_ready(spec: LaunchSpec) -> None:
    wait_until(lambda: spec.log_path.exists() and "ready" in spec.log_path.read_text())


def test_a_lease_that_a_runner_was_given_is_held_until_it_has_ended(
    launcher: Launcher, spec: Spec, tmp_path: Path
) -> None:
    """By its keeper, also when the coordinator holds it no more."""
    lease = tmp_path / "lease"
    lease.touch()
    with lease.open() as coordinator_file, lease.open() as other_file:
        fcntl.flock(coordinator_file, fcntl.LOCK_EX)
        runner = launcher(dataclasses.replace(spec("good"), lease_fds=(coordinator_file.fileno(),)))
        coordinator_file.close()
        with runner, pytest.raises(BlockingIOError):
            fcntl.flock(other_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other_file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("frozen", "stopped"),
        ("family", "stopped"),
        ("deaf_family", "did not stop in time and was killed"),
        ("sharing", "stopped"),
        ("frozen_deaf_sharing", "did not stop in time and was killed"),
    ],
)
def test_stop_leaves_no_process_no_folder_and_no_shared_memory(
    behaviour: str, reason: str, launcher: Launcher, spec: Spec
) -> None:
    """Whether a runner obeys, ignores SIGTERM, is stopped, has children in other sessions, or a resource tracker."""
    launch_spec, before = spec(behaviour), zombies()
    runner = launcher(launch_spec)
    until_ready(launch_spec)
    assert len(left(launch_spec.log_path)) == 1 + ("family" in behaviour) + ("sharing" in behaviour)
    # Only a runner that never stops is worth a short wait: a busy machine takes long to end the others.
    runner.stop(grace_s=1 if "deaf" in behaviour else 60)
    assert runner.exit_reason() == reason
    assert left(launch_spec.log_path) == []
    assert not folder_of(runner.address).exists()
    assert zombies() <= before


@pytest.mark.parametrize("behaviour", ["frozen", "deaf_family_sharing"])
def test_a_coordinator_killed_by_force_takes_its_runner_along(behaviour: str, tmp_path: Path) -> None:
    """Nothing can be cleaned up by a process that got SIGKILL, so the keeper does it."""
    log = tmp_path / f"{behaviour}.log"
    with coordinator(behaviour, tmp_path) as process:
        assert process.stdout is not None
        folder = folder_of(process.stdout.readline().strip())
        wait_until(lambda: "ready" in log.read_text())
        assert left(log) != []
        process.kill()
    wait_until(lambda: not left(log))
    wait_until(lambda: not folder.exists())


def test_ctrl_c_reaches_only_the_coordinator(
    tmp_path: Path,
) -> None:
    """A terminal signals its whole foreground group; the runner must still be there to be stopped in order."""
    with coordinator("good", tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: "ready" in (tmp_path / "good.log").read_text())
        os.killpg(process.pid, signal.SIGINT)
        output = process.stdout.read()
    assert output == "interrupted, runner alive\nstopped: stopped\n"
    assert left(tmp_path / "good.log") == []


@pytest.mark.parametrize("behaviour", ["deaf", "frozen", "sharing"])
def test_a_runner_dies_with_its_keeper(
    behaviour: str,
    launcher: Launcher,
    spec: Spec,
) -> None:
    """The one process that would clean up can be killed too; the resource tracker that ends shared memory is spared."""
    launch_spec = spec(behaviour)
    runner = launcher(launch_spec)
    until_ready(launch_spec)
    os.kill(state_of(runner.pid)[1], signal.SIGKILL)
    wait_until(lambda: not left(launch_spec.log_path))
    wait_until(lambda: not runner.alive())
    assert runner.exit_reason() == "was killed as its keeper ended with code -9 (out of memory?)"
    assert not folder_of(runner.address).exists()


def test_a_group_that_has_a_dead_runners_number_by_now_is_left_alone(launcher: Launcher, spec: Spec) -> None:
    """A coordinator that was stopped for long, and is root, would kill another user's processes."""
    runner = launcher(spec("good"))
    until_ready(spec("good"))
    os.kill(state_of(runner.pid)[1], signal.SIGKILL)
    wait_until(lambda: not left(spec("good").log_path))
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as stranger:
        runner.pid = stranger.pid
        wait_until(lambda: not runner.alive())
        assert state_of(stranger.pid)[0] == "S"
        stranger.kill()


@pytest.mark.parametrize("behaviour", ["deaf_family", "clinging"])
def test_a_keeper_asked_to_end_stops_its_runner_first(behaviour: str, launcher: Launcher, spec: Spec) -> None:
    """SIGTERM to every process of a session, as at log-out, leaves nothing, not even a tracker that does not end."""
    launch_spec = spec(behaviour)
    with launcher(launch_spec) as runner:
        until_ready(launch_spec)
        assert len(left(launch_spec.log_path)) == 2
        os.kill(state_of(runner.pid)[1], signal.SIGTERM)
        wait_until(lambda: not runner.alive())
    assert left(launch_spec.log_path) == []


def test_a_runner_gets_a_process_group_a_private_folder_and_no_foreign_descriptor(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifeline held by a sibling's runner would keep that sibling alive after the coordinator."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    launcher = partial(process.launch, python=write_standin(tmp_path))
    with launcher(spec("good")), launcher(spec("show")) as runner:
        wait_until(lambda: not runner.alive())
        runner_view = json.loads(spec("show").log_path.read_text().partition("json ")[2])
        assert runner_view["descriptors"] == [0, 1, 2]
        assert (runner_view["session"], runner_view["group"]) == (os.getsid(0), runner.pid)
        assert runner_view["cwd"] == str(folder_of(runner.address))
        assert "HF_TOKEN" not in runner_view["environ"]
        assert runner_view["arguments"] == [
            *("-m", "wattdock_runner", "--backend", "show"),
            *("--socket", runner.address.removeprefix("unix:")),
        ]


def test_an_interpreter_that_cannot_be_started_is_a_launch_error(tmp_path: Path, spec: Spec) -> None:
    """The message names the file."""
    with raises(LaunchError, "no_python"):
        process.launch(spec("good"), python=tmp_path / "no_python")


@pytest.mark.parametrize(
    ("behaviour", "reason", "logged"),
    [
        ("family_crash", "exited with code 3", "pid "),
        ("sharing_killed", "was killed by SIGKILL (out of memory?)", "segment "),
    ],
)
def test_a_runner_that_died_says_how_and_leaves_nothing(
    behaviour: str, reason: str, logged: str, launcher: Launcher, spec: Spec
) -> None:
    """Engine workers in sessions of their own outlive a crash unless somebody looks for them."""
    launch_spec = spec(behaviour)
    with launcher(launch_spec) as runner:
        wait_until(lambda: not runner.alive())
        assert runner.exit_reason() == reason
    assert launch_spec.log_path.read_text().count(logged) == 1 + ("family" in behaviour)
    assert left(launch_spec.log_path) == []
