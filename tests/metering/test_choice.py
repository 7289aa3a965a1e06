from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING, get_args

import pytest
from metering.powercap import two_sockets
from refused import raises
from seams.metering import WITHOUT_GPU, source_class, zeus
from unprivileged import run_as_user, user_home

from wattdock.config import ExperimentConfig
from wattdock.errors import PreflightError
from wattdock.host import Gpu, GpuInventory
from wattdock.metering import choose_meter

if TYPE_CHECKING:
    from pathlib import Path

NONE = GpuInventory((), reason="no NVIDIA driver: libnvidia-ml.so.1 was not found")
ONE = GpuInventory((Gpu(index=0, uuid="GPU-1", name="NVIDIA H200"),))


def test_every_value_of_the_setting_that_reads_gpus_has_a_file_with_its_source() -> None:
    """A new source needs its file and its name in the setting."""
    values = get_args(ExperimentConfig.model_fields["meter"].annotation)
    names = set(values) - {"auto", *WITHOUT_GPU}
    assert {source_class(name)().name for name in names} == names


@pytest.mark.parametrize(
    ("setting", "inventory", "rapl", "name"),
    [
        ("auto", ONE, False, "nvml"),
        ("auto", ONE, True, "nvml"),
        ("auto", NONE, True, "rapl"),
        ("auto", NONE, False, "none"),
        ("nvml", ONE, False, "nvml"),
        ("zeus", ONE, True, "zeus"),
        ("rapl", ONE, True, "rapl"),
        ("none", ONE, True, "none"),
    ],
)
def test_what_is_chosen(tmp_path: Path, setting: str, inventory: GpuInventory, rapl: bool, name: str) -> None:
    """What was asked for; by itself NVML before RAPL before nothing; RAPL beside any of them where it is readable."""
    if rapl:
        two_sockets(tmp_path)
    chosen = choose_meter(setting, inventory, powercap=tmp_path)
    assert chosen.name == name
    assert chosen.new_meter().peek().meter == name
    with_rapl = rapl and setting != "none"
    assert (chosen.new_meter().peek().host is not None) is with_rapl
    assert ("package-1" in chosen.reason) is with_rapl


def test_auto_says_why_and_how_zeus_would_be_chosen(tmp_path: Path) -> None:
    """The first line of a run holds the reason."""
    assert "--meter zeus" in choose_meter("auto", ONE, powercap=tmp_path).reason
    assert str(NONE.reason) in choose_meter("auto", NONE, powercap=tmp_path).reason


@pytest.mark.parametrize(
    ("setting", "missing"), [("nvml", "libnvidia-ml"), ("zeus", "libnvidia-ml"), ("rapl", "powercap")]
)
def test_what_was_asked_for_and_cannot_be_had_is_refused_with_the_next_step(
    tmp_path: Path, setting: str, missing: str
) -> None:
    """Never another meter in its place."""
    with raises(PreflightError, setting, missing, "--meter"):
        choose_meter(setting, NONE, powercap=tmp_path / "powercap")


def test_counters_for_root_only_are_named_with_what_would_open_them(tmp_path: Path) -> None:
    """Since CVE-2020-8694 that is what a kernel does; as a real unprivileged user."""
    home = user_home(tmp_path)
    for counter in two_sockets(home / "powercap").values():
        counter.chmod(0)
    code = """
import pathlib
from wattdock.host import GpuInventory
from wattdock.metering.choice import choose_meter
print(choose_meter("auto", GpuInventory((), reason="none"), powercap=pathlib.Path("powercap").absolute()).reason)
choose_meter("rapl", GpuInventory((), reason="none"), powercap=pathlib.Path("powercap"))
"""
    done = run_as_user([sys.executable, "-c", code], env={"HOME": str(home)}, cwd=home)
    assert "no RAPL" in done.stdout
    assert "package-0" not in done.stdout
    assert "intel-rapl:0/energy_uj" in done.stdout
    assert ("PreflightError" in done.stderr, "powercap/intel-rapl:0/energy_uj" in done.stderr) == (True, True)


def test_zeus_that_is_missing_too_old_or_incomplete_is_refused_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own import would fail only after the model was loaded."""

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(zeus, "version", absent)
    with raises(PreflightError, "zeus>=0.16", "--meter"):
        choose_meter("zeus", ONE, powercap=tmp_path)
    monkeypatch.setattr(zeus, "version", lambda _: "0.11.0")
    with raises(PreflightError, "0.11.0"):
        choose_meter("zeus", ONE, powercap=tmp_path)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)
    with raises(PreflightError, "zeus.monitor", "--meter"):
        choose_meter("zeus", ONE, powercap=tmp_path)
