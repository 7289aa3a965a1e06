"""Doctor's checks on leases and CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from seams.doctor import MACHINE, cpu_load, governor, lease_folder
from seams.doctor import machine as doctor_machine
from seams.host import LeaseRequest, hold


@pytest.mark.parametrize(
    ("governors", "status"), [(["performance"] * 2, "pass"), (["performance", "powersave"], "warn"), ([], "pass")]
)
def test_a_governor_that_slows_the_host_is_a_warning(tmp_path: Path, governors: list[str], status: str) -> None:
    """On any of the CPUs; a virtual machine does not tell."""
    for number, name in enumerate(governors):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(name + "\n")
    assert governor(tmp_path).status == status


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
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    if later:
        stat.write_text("cpu  100 0 0 100 0 0 0 0 0 0\n")
    monkeypatch.setattr("time.sleep", lambda _: later and stat.write_text(f"cpu  {later}\n"))
    outcome = cpu_load(tmp_path)
    assert (outcome.status, outcome.figure) == (status, figure)


def test_every_part_of_the_machine_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that somebody holds is a warning."""
    monkeypatch.setattr(doctor_machine, "WATCHED_S", 0.0)
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    with hold(LeaseRequest(("GPU-a",), "gpus"), lambda line: None):
        checks = {check.name: check for check in MACHINE.run(Path("/"))}
    assert (checks["leases"].status, "GPU-a by " in checks["leases"].figure) == ("warn", True)
    assert checks.keys() == {"leases", "shared memory", "CPU load", "CPU governor"}


def test_a_lease_folder_of_one_user_only_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others could not see what is measured."""
    (tmp_path / "mine").mkdir(mode=0o755)
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "mine"))
    outcome = lease_folder(tmp_path)
    assert (outcome.status, str(tmp_path / "mine") in str(outcome.remedy)) == ("warn", True)
