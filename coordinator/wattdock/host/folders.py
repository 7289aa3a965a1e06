"""Where wattdock keeps things, and whether there is room."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from wattdock.errors import PreflightError

MIN_FREE_BYTES = 50_000_000


def wattdock_home() -> Path:
    """Return the folder for models and caches: `WATTDOCK_HOME`, else under the XDG data folder."""
    if home := os.environ.get("WATTDOCK_HOME"):
        return Path(home).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "wattdock"


def require_writable(folder: Path, *, setting: str, free_bytes: int = MIN_FREE_BYTES) -> None:
    """Make `folder` and see that a file can be made in it, with `free_bytes` of room beside it.

    Raises:
        PreflightError: It cannot; names the folder and the setting that would change it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-test-"):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise PreflightError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder with {setting}"
        ) from error
    if free < free_bytes:
        raise PreflightError(
            f"only {free / 1e6:.0f} MB free under {folder}, at least {free_bytes / 1e6:.0f} MB are needed; "
            f"free some or choose another folder with {setting}"
        )
