"""Doctor's checks on folders, CPUs and container engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from make.outcomes import known
from seams.doctor import MACHINE, ExaminedMachine, containers, cpu_load, governor, lease_folder
from seams.doctor import machine as doctor_machine
from seams.host import LeaseRequest, hold

if TYPE_CHECKING:
    from pathlib import Path


def machine(folder: Path, *, needs_gpu: bool = False) -> ExaminedMachine:
    return ExaminedMachine(folder, folder, "pytorch", needs_gpu=needs_gpu, proc=folder, system=folder)


@pytest.mark.parametrize(
    ("governors", "status"), [(["performance"] * 2, "pass"), (["performance", "powersave"], "warn"), ([], "pass")]
)
def test_a_governor_that_slows_the_host_is_a_warning(tmp_path: Path, governors: list[str], status: str) -> None:
    """On any of the CPUs; a virtual machine does not tell."""
    for number, name in enumerate(governors):
        folder = tmp_path / f"cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(name + "\n")
    assert governor(machine(tmp_path)).status == status


@pytest.mark.parametrize(
    ("later", "status", "figure"),
    [
        ("104 0 0 196 0 0 0 0 0 0", "pass", "4% busy"),
        ("120 0 0 100 0 0 0 80 0 0", "warn", "100% busy, 80% for other virtual machines on the same host"),
        ("180 0 0 100 0 0 0 20 0 0", "warn", "100% busy"),
        ("100 0 0 100 0 0 0 0 0 0", "warn", "unknown"),
        (None, "warn", "unknown"),
    ],
)
def test_cpus_that_work_for_others_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str | None, status: str, figure: str
) -> None:
    """For processes of this machine, or for machines that nobody here can see; unknown never passes."""
    stat = tmp_path / "stat"
    if later:
        stat.write_text("cpu  100 0 0 100 0 0 0 0 0 0\n")
    monkeypatch.setattr("time.sleep", lambda _: later and stat.write_text(f"cpu  {later}\n"))
    outcome = cpu_load(machine(tmp_path))
    assert (outcome.status, outcome.figure) == (status, figure)


def test_every_part_of_the_machine_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that somebody holds is a warning; a results folder that cannot be made is a failure."""
    monkeypatch.setattr(doctor_machine, "WATCHED_S", 0.0)
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    (tmp_path / "file").touch()
    examined = ExaminedMachine(tmp_path / "file" / "results", tmp_path / "home", "pytorch")
    with hold(LeaseRequest(("GPU-a",), "gpus"), lambda line: None):
        checks = {check.name: check for check in MACHINE.run(examined)}
    assert (checks["leases"].status, "GPU-a by " in checks["leases"].figure) == ("warn", True)
    assert checks["results folder"].status == "fail"
    assert "--output-dir" in str(checks["results folder"].remedy)
    assert checks["models and caches"].status in ("pass", "warn")
    assert {"shared memory", "CPU load", "CPU governor"} <= checks.keys()


def test_a_lease_folder_of_one_user_only_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others could not see what is measured."""
    (tmp_path / "mine").mkdir(mode=0o755)
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "mine"))
    outcome = lease_folder(machine(tmp_path))
    assert (outcome.status, str(tmp_path / "mine") in str(outcome.remedy)) == ("warn", True)


def test_a_missing_container_engine_is_a_warning_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend runs as a process then."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    outcome = known(containers(machine(tmp_path)))
    assert (outcome.status, outcome.figure) == ("warn", "no Docker engine answers at unix:///nowhere/docker.sock")


@pytest.mark.parametrize(("runtimes", "status"), [(("nvidia", "runc"), "pass"), (("runc",), "warn")])
def test_an_engine_without_nvidia_s_runtime_cannot_show_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtimes: tuple[str, ...], status: str
) -> None:
    """The warning has the command that mends it."""
    engine = SimpleNamespace(name="Docker", version="29", runtimes=runtimes)
    monkeypatch.setattr(doctor_machine, "find_image", lambda *_, **__: SimpleNamespace(name="x", engine=engine))
    assert known(containers(machine(tmp_path, needs_gpu=True))).status == status
