"""Folders that results and caches are to be written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattdock.errors import PreflightError
from wattdock.host.folders import require_writable


def test_a_folder_that_is_on_no_disk_is_not_called_full() -> None:
    """/proc has no room and never will, whoever asks."""
    with pytest.raises(
        PreflightError, match=r"^cannot write to /proc/wattdock: .*; choose another folder with --here$"
    ):
        require_writable(Path("/proc/wattdock"), setting="--here")
