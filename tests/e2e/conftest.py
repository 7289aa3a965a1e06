"""A home and a working folder of its own for each test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from command import Command
from unprivileged import OTHER_UID, give_to_user, user_home

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wattdock(tmp_path: Path) -> Command:
    home = user_home(tmp_path)
    folder = home / "work"
    folder.mkdir()
    give_to_user(folder)
    return Command(home, folder)


@pytest.fixture
def other(wattdock: Command, tmp_path: Path) -> Command:
    """A second user of the same machine: another uid, home and folder, the same leases."""
    home = tmp_path / "other"
    for folder in (home, home / "tmp", home / "work"):
        folder.mkdir()
        os.chown(folder, OTHER_UID, OTHER_UID) if os.getuid() == 0 else None
    return Command(home, home / "work")
