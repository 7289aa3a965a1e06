"""One GPU that draws 300 W, on a machine in virtual time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from make.machine import VirtualMachine

from wattdock.host import leases

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def shared_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease folder for all users, also where the suite's user is not root, who alone can make such a folder."""
    monkeypatch.setattr(leases, "root_uid", os.geteuid)
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases").chmod(leases.FOLDER_MODE)


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    return VirtualMachine(tmp_path / "machine", {"GPU-1": lambda _: 300.0})
