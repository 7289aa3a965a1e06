"""One GPU that draws 300 W, on a machine in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from make.machine import VirtualMachine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    return VirtualMachine(tmp_path / "machine", {"GPU-1": lambda _: 300.0})
