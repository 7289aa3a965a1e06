"""What doctor says of folders, CPUs and container engines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from wattdock.checks.doctor_machine import container_checks, governor, machine_checks, runtime_check
from wattdock.host.leases import LeaseRequest, held

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("governors", "status"), [(["performance"] * 2, "pass"), (["performance", "powersave"], "warn"), ([], "pass")]
)
def test_a_governor_that_slows_the_host_is_found(tmp_path: Path, governors: list[str], status: str) -> None:
    """On any one of the CPUs; a virtual machine does not tell."""
    for number, name in enumerate(governors):
        folder = tmp_path / f"cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(name + "\n")
    assert governor(tmp_path).status == status


def test_every_part_of_the_machine_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that somebody holds, a results folder that cannot be."""
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("WATTDOCK_HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    with held(LeaseRequest(("GPU-a",), "gpus", "theirs"), lambda line: None):
        found = {check.name: check for check in machine_checks(tmp_path / "file" / "results", os.environ)}
    assert found["leases"].status == "warn"
    assert "GPU-a by " in found["leases"].figure
    assert found["results folder"].status == "fail"
    assert "choose another folder with --output-dir" in str(found["results folder"].remedy)
    assert found["models and caches"].status in ("pass", "warn")
    assert {
        "sockets",
        "shared memory",
        "CPU load",
        "CPU governor",
        "clock source",
        "clock identity",
    } <= found.keys()


def test_a_lease_folder_of_one_user_only_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others could not see what is measured."""
    (tmp_path / "mine").mkdir(mode=0o755)
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "mine"))
    found = {check.name: check for check in machine_checks(tmp_path, os.environ)}
    assert found["leases"].status == "warn"
    assert f"chmod 1777 {tmp_path / 'mine'}" in str(found["leases"].remedy)


def test_containers_that_cannot_be_had_are_a_warning_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend runs as a process then."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    [check] = container_checks("pytorch", gpus=True)
    assert (check.status, check.figure) == ("warn", "no Docker engine answers at unix:///nowhere/docker.sock")


@pytest.mark.parametrize(("runtimes", "status"), [(("nvidia", "runc"), "pass"), (("runc",), "warn")])
def test_an_engine_without_nvidia_s_runtime_cannot_show_gpus(runtimes: tuple[str, ...], status: str) -> None:
    """With the command that mends it."""
    assert runtime_check(runtimes).status == status
