from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from unprivileged import user_home

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for leases that all users can reach."""
    return user_home(tmp_path) / "leases"
