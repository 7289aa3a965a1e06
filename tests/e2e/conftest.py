"""A home and a working folder of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command import Command
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wattdock(tmp_path: Path) -> Command:
    home = user_home(tmp_path)
    folder = home / "work"
    folder.mkdir()
    give_to_user(folder)
    return Command(home, folder)
