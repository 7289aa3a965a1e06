"""The contract of `Launcher`, shown on each: how runners start, end, and are ended, and that nothing is left.

A new launcher is one more parameter of the fixture.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from containers.conftest import standin_image  # noqa: F401  (a fixture)
from launch.standins import folder_of, wait_until, write_apptainer, write_standin
from refused import raises
from seams.launch import Engine, apptainer, docker, process

from wattdock.config import ContainerSpec
from wattdock.errors import LaunchError, PreflightError
from wattdock.launch import LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.launch import Launcher

    Spec = Callable[[str], LaunchSpec]


@pytest.fixture(params=["process", "apptainer", "docker"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Launcher:
    """One launcher of stand-ins."""
    if request.param == "apptainer":
        engine, image = Engine(str(write_apptainer(tmp_path)), "1.4.0"), tmp_path / "image.sif"
        image.write_text(str(write_standin(tmp_path)))
        return partial(apptainer.launch, engine=engine, file=image, cache=tmp_path / "cache", scratch=tmp_path)
    if request.param == "docker":
        image = request.getfixturevalue("standin_image")
        return partial(docker.launch, image=image, cache=tmp_path / "cache", limits=ContainerSpec())
    return partial(process.launch, python=write_standin(tmp_path))


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("good", "stopped"),
        ("deaf", "did not stop in time and was killed"),
        ("deaf_family", "did not stop in time and was killed"),
    ],
)
def test_stop_ends_a_runner_and_removes_its_folder(behaviour: str, reason: str, launcher: Launcher, spec: Spec) -> None:
    """Whether it obeys, is deaf, or has children in sessions of their own."""
    runner = launcher(spec(behaviour))
    wait_until((folder_of(runner.address) / "r.sock").exists)
    assert (runner.alive(), runner.exit_reason()) == (True, None)
    # Only a runner that never stops is worth a short wait: a busy machine takes long to end the others.
    runner.stop(grace_s=1 if "deaf" in behaviour else 60)
    assert (runner.alive(), runner.exit_reason()) == (False, reason)
    assert not folder_of(runner.address).exists()
    assert "ready" in spec(behaviour).log_path.read_text()


def test_a_runner_that_dies_says_how_and_its_output_is_appended_to_the_log(launcher: Launcher, spec: Spec) -> None:
    """A user needs its last lines; a restart must not erase those of the one before it."""
    for _ in range(2):
        with launcher(spec("crash")) as runner:
            wait_until(lambda: not runner.alive())
            assert runner.exit_reason() == "exited with code 3"
            # An engine may put a line of the other stream before, between or behind these.
            last = ["loading", "CUDA driver is too old"]
            assert [line for line in spec("crash").log_path.read_text().splitlines()[-3:] if line in last] == last
            assert not folder_of(runner.address).exists()
    assert spec("crash").log_path.read_text().count("CUDA driver is too old") == 2


def test_killing_a_runner_leaves_the_other_and_leaks_no_descriptor(launcher: Launcher, spec: Spec) -> None:
    """A study launches hundreds of runners from one process."""
    with launcher(spec("good")) as first:
        with launcher(spec("deaf")) as second:
            second.stop(0)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with launcher(spec("deaf")) as third:
            third.stop(0)
            assert not third.alive()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert first.alive()


def test_a_log_that_cannot_be_written_is_a_launch_error(launcher: Launcher, tmp_path: Path) -> None:
    """The message names the log."""
    spec = LaunchSpec(backend="good", runner_dir=tmp_path, log_path=tmp_path / "absent" / "runner.log")
    with pytest.raises(LaunchError, match=r"absent/runner\.log"):
        launcher(spec)


def test_a_socket_path_too_long_is_refused_before_anything_starts(
    launcher: Launcher, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would cut it off or refuse it later, with a worse message."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with raises(PreflightError, "100", "XDG_RUNTIME_DIR"):
        launcher(spec("good"))
    assert list(deep.iterdir()) == []


def test_a_runners_processes_have_the_hosts_ids(launcher: Launcher, spec: Spec) -> None:
    """GPU processes are told apart by these: the runner, and what it started in sessions of its own."""
    with launcher(spec("deaf_family")) as runner:
        wait_until((folder_of(runner.address) / "r.sock").exists)
        pids = runner.pids()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        assert sum(b"deaf_family" in command for command in commands) >= 2
        assert os.getpid() not in pids
        runner.stop(0)
        assert runner.pids() == frozenset()
