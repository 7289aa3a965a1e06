"""Make a folder exactly once, complete or not at all, also where several processes make it at the same time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock.errors import Cause, PreflightError
from wattdock.files import locked, new_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# Longer than any download and conversion takes.
WAIT_S = 3600


def build_once(
    target: Path,
    build: Callable[[Path], object],
    *,
    progress: Callable[[str], None],
    needed_bytes: int = 0,
) -> None:
    """Let `build` fill a scratch folder beside `target`, then rename it; does nothing where `target` exists.

    Other processes wait for a lock, which ends with the process that holds it.

    Args:
        target: The folder to make; it appears complete or not at all.
        needed_bytes: Least free disk space.

    Raises:
        PreflightError: The place cannot be written to, or has too little space, or another process takes too long.
    """
    if target.is_dir():
        return
    lock = target.parent / f".{target.name}.lock"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait_s=WAIT_S, say=progress):
            if not target.is_dir():
                require_space(target.parent, needed_bytes)
                with new_folder(target.parent, f".{target.name}.") as scratch:
                    build(scratch.path)
                    scratch.finish(target)
    except OSError as error:
        what = f"use {lock}" if error.filename == str(lock) else f"write {target}"
        raise PreflightError(
            f"cannot {what}: {error.strerror or error}",
            "free space there or set WATTDOCK_HOME to another folder",
            cause=Cause.NO_SPACE,
        ) from error


def require_space(folder: Path, needed_bytes: int) -> None:
    """Check that the file system of an existing folder has room.

    Raises:
        PreflightError: Less than `needed_bytes` are free.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise PreflightError(
            f"{folder} has {size_text(free_bytes)} free and {size_text(needed_bytes)} are needed",
            "free space there or set WATTDOCK_HOME to another folder",
            cause=Cause.NO_SPACE,
        )
