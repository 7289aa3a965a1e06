"""Runners as processes: how they start, and that nothing of them is ever left."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import unprivileged

from wattdock.errors import LaunchError
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.protocol import LaunchSpec
from wattdock_proto.v1.runner_pb2 import DescribeRequest
from wattdock_proto.v1.runner_pb2_grpc import RunnerStub

if TYPE_CHECKING:
    from collections.abc import Callable

    Spec = Callable[[str], LaunchSpec]
    Until = Callable[..., None]
    Left = Callable[[Path], list[str]]


COORDINATOR = """
import signal, sys, time
from pathlib import Path
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.protocol import LaunchSpec
program, behaviour, folder = sys.argv[1:]
spec = LaunchSpec(backend=behaviour, runner_dir=Path(folder), log_path=Path(folder, behaviour + ".log"))
with ProcessLauncher(Path(program), orphan_grace_s=1).launch(spec) as runner:
    print(runner.address, flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print("interrupted, runner", "alive" if runner.alive() else "dead", flush=True)
print("stopped:", runner.exit_reason(), flush=True)
"""


@pytest.fixture
def coordinator(standin: Path, tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Start a coordinator as a process of its own."""

    def start(behaviour: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", COORDINATOR, standin, behaviour, tmp_path],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def ready(spec: LaunchSpec) -> bool:
    return spec.log_path.exists() and "ready" in spec.log_path.read_text()


def folder_of(address: str) -> Path:
    return Path(address.removeprefix("unix:")).parent


def test_a_lease_that_a_runner_was_given_is_held_until_it_has_ended(
    launcher: ProcessLauncher, spec: Spec, tmp_path: Path
) -> None:
    """By its keeper, also when the coordinator holds it no more."""
    lease = tmp_path / "lease"
    lease.touch()
    with lease.open() as ours, lease.open() as theirs:
        fcntl.flock(ours, fcntl.LOCK_EX)
        runner = launcher.launch(dataclasses.replace(spec("good"), lease_fds=(ours.fileno(),)))
        ours.close()
        with runner, pytest.raises(BlockingIOError):
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_all_that_a_runner_started_belongs_to_it(launcher: ProcessLauncher, spec: Spec, until: Until) -> None:
    """Its workers, whatever session they moved to; nothing once it has ended."""
    family = spec("family")
    with launcher.launch(family) as runner:
        until(lambda: ready(family))
        assert runner.pid in runner.pids()
        assert len(runner.pids()) > 1
        assert os.getpid() not in runner.pids()
    assert runner.pids() == frozenset()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("good", "stopped"),
        ("deaf", "did not stop in time and was killed"),
        ("frozen", "stopped"),
        ("frozen_deaf", "did not stop in time and was killed"),
        ("family", "stopped"),
        ("deaf_family", "did not stop in time and was killed"),
        ("sharing", "stopped"),
        ("frozen_deaf_sharing", "did not stop in time and was killed"),
    ],
)
def test_stop_leaves_no_process_no_folder_and_no_shared_memory(
    behaviour: str,
    reason: str,
    launcher: ProcessLauncher,
    spec: Spec,
    until: Until,
    left: Left,
    zombies: Callable[[], list[int]],
) -> None:
    """Whether a runner obeys, ignores SIGTERM, is stopped, has children in other sessions, or a resource tracker."""
    wanted = spec(behaviour)
    runner = launcher.launch(wanted)
    until(lambda: ready(wanted))
    assert len(left(wanted.log_path)) == 1 + ("family" in behaviour) + ("sharing" in behaviour)
    began_s = time.monotonic()
    runner.stop(grace_s=1)
    assert runner.exit_reason() == reason
    assert time.monotonic() - began_s < 20
    assert left(wanted.log_path) == []
    assert not folder_of(runner.address).exists()
    assert zombies() == []


@pytest.mark.parametrize("behaviour", ["good", "deaf", "frozen", "deaf_family_sharing"])
def test_a_coordinator_killed_by_force_takes_its_runner_along(
    behaviour: str,
    coordinator: Callable[[str], subprocess.Popen[str]],
    tmp_path: Path,
    until: Until,
    left: Left,
) -> None:
    """Nothing can be cleaned up by a process that got SIGKILL, so the keeper does it."""
    log = tmp_path / f"{behaviour}.log"
    with coordinator(behaviour) as process:
        assert process.stdout is not None
        folder = folder_of(process.stdout.readline().strip())
        until(lambda: "ready" in log.read_text())
        assert left(log) != []
        process.kill()
    until(lambda: not left(log))
    until(lambda: not folder.exists())


def test_ctrl_c_reaches_only_the_coordinator(
    coordinator: Callable[[str], subprocess.Popen[str]],
    tmp_path: Path,
    until: Until,
    left: Left,
) -> None:
    """A terminal signals its whole foreground group; the runner must still be there to be stopped in order."""
    with coordinator("good") as process:
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: "ready" in (tmp_path / "good.log").read_text())
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
    assert rest == "interrupted, runner alive\nstopped: stopped\n"
    assert left(tmp_path / "good.log") == []


@pytest.mark.parametrize("behaviour", ["good", "deaf", "frozen"])
def test_a_runner_dies_with_its_keeper(
    behaviour: str,
    launcher: ProcessLauncher,
    spec: Spec,
    until: Until,
    left: Left,
    keeper_of: Callable[[int], int],
) -> None:
    """The one process that would clean up can be killed too."""
    wanted = spec(behaviour)
    runner = launcher.launch(wanted)
    until(lambda: ready(wanted))
    os.kill(keeper_of(runner.pid), signal.SIGKILL)
    until(lambda: not left(wanted.log_path))
    until(lambda: not runner.alive())
    assert runner.exit_reason() == "killed because its keeper ended with code -9"
    assert not folder_of(runner.address).exists()


def test_shared_memory_goes_with_a_runner_whose_keeper_was_killed(
    launcher: ProcessLauncher, spec: Spec, until: Until, left: Left, keeper_of: Callable[[int], int]
) -> None:
    """The coordinator, which ends the rest of the runner's group at once, spares Python's resource tracker."""
    wanted = spec("sharing")
    runner = launcher.launch(wanted)
    until(lambda: ready(wanted))
    os.kill(keeper_of(runner.pid), signal.SIGKILL)
    until(lambda: not runner.alive())
    until(lambda: not left(wanted.log_path))


def test_what_calls_itself_a_resource_tracker_and_does_not_end_is_killed(
    launcher: ProcessLauncher, spec: Spec, until: Until, left: Left
) -> None:
    """It was the last one left."""
    wanted = spec("clinging")
    with launcher.launch(wanted) as runner:
        until(lambda: ready(wanted))
        assert len(left(wanted.log_path)) == 2
        runner.kill()
    assert left(wanted.log_path) == []


def test_a_keeper_asked_to_end_stops_its_runner_first(
    launcher: ProcessLauncher,
    spec: Spec,
    until: Until,
    left: Left,
    keeper_of: Callable[[int], int],
) -> None:
    """SIGTERM to every process of a session, as at log-out, leaves nothing."""
    wanted = spec("deaf_family")
    with launcher.launch(wanted) as runner:
        until(lambda: ready(wanted))
        os.kill(keeper_of(runner.pid), signal.SIGTERM)
        until(lambda: not runner.alive())
    assert left(wanted.log_path) == []


def test_a_crashed_runner_leaves_none_of_its_children(
    launcher: ProcessLauncher, spec: Spec, until: Until, left: Left
) -> None:
    """Engine workers in sessions of their own outlive a crash unless somebody looks for them."""
    wanted = spec("family_crash")
    with launcher.launch(wanted) as runner:
        until(lambda: not runner.alive())
    assert wanted.log_path.read_text().count("pid ") == 2
    assert left(wanted.log_path) == []


def test_a_runner_gets_a_session_a_private_folder_and_no_foreign_descriptor(
    standin: Path, spec: Spec, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifeline held by a sibling's runner would keep that sibling alive after the coordinator."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    launcher = ProcessLauncher(standin)
    with launcher.launch(spec("good")), launcher.launch(spec("show")) as runner:
        until(lambda: not runner.alive())
        seen = json.loads(runner.log_tail().partition("json ")[2])
        assert seen["descriptors"] == [0, 1, 2]
        assert seen["session"] == seen["group"] == runner.pid
        assert seen["cwd"] == str(folder_of(runner.address))
        assert "HF_TOKEN" not in seen["environ"]
        assert seen["arguments"] == [
            *("-m", "wattdock_runner", "--backend", "show"),
            *("--socket", runner.address.removeprefix("unix:")),
        ]


def test_an_interpreter_that_cannot_be_started_is_a_launch_error(tmp_path: Path, spec: Spec) -> None:
    """The message names the file."""
    with pytest.raises(LaunchError, match=r"could not be started: .*no_python: No such file"):
        ProcessLauncher(tmp_path / "no_python").launch(spec("good"))


def test_the_real_runner_answers_and_stops(tmp_path: Path) -> None:
    """What is launched is a server that the wire's own stub can ask."""
    backend = Path(__file__).parents[1] / "runners" / "fake"
    spec = LaunchSpec(backend="fake", runner_dir=backend, log_path=tmp_path / "runner.log")
    with ProcessLauncher(Path(sys.executable)).launch(spec) as runner:
        with grpc.insecure_channel(runner.address) as channel:
            stub = RunnerStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.Describe(DescribeRequest(), wait_for_ready=True, timeout=240)
        assert answer.backend == "fake", runner.log_tail()
        runner.stop()
        assert runner.exit_reason() == "stopped", runner.log_tail()


def test_an_unprivileged_user_can_launch_and_stop(tmp_path: Path, left: Left) -> None:
    """Nothing in a launch needs root."""
    home = unprivileged.user_home(tmp_path)
    program = home / "standin"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("standin_runner.py")} "$@"\n')
    program.chmod(0o755)
    run = unprivileged.run_as_user(
        [sys.executable, "-c", COORDINATOR.replace("time.sleep(600)", "time.sleep(1)"), program, "family", home],
        env={"HOME": str(home)},
        cwd=home,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("stopped: stopped\n")
    assert left(home / "family.log") == []


def test_a_runner_that_was_killed_says_so_and_leaves_nothing(
    launcher: ProcessLauncher, spec: Spec, until: Until, left: Left
) -> None:
    """The client learns by polling that there is nothing to wait for."""
    wanted = spec("sharing_killed")
    with launcher.launch(wanted) as runner:
        until(lambda: not runner.alive())
        assert runner.exit_reason() == "killed by SIGKILL (out of memory?)"
    assert wanted.log_path.read_text().count("segment ") == 1
    assert left(wanted.log_path) == []
