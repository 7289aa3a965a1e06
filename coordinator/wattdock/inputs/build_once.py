"""Make a folder exactly once, complete or not at all, also where several processes make it at the same time."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def build_once(
    target: Path,
    build: Callable[[Path], None],
    *,
    progress: Callable[[str], None],
    needed_bytes: int = 0,
) -> None:
    """Let `build` fill a scratch folder beside `target`, then rename it; does nothing where `target` exists.

    Other processes wait for a lock, which ends with the process that holds it. A scratch folder that a killed process
    left behind is cleared first.

    Args:
        target: The folder to make; it appears complete or not at all.
        needed_bytes: Least free disk space.

    Raises:
        PreflightError: The place cannot be written to, or has too little space.
    """
    if target.is_dir():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock", progress):
            if not target.is_dir():
                require_space(target.parent, needed_bytes)
                _build(target, build)
    except OSError as error:
        raise PreflightError(
            f"cannot write {target}: {error.strerror or error}; free space there or set WATTDOCK_HOME to another folder"
        ) from error


def _build(target: Path, build: Callable[[Path], None]) -> None:
    """Fill a scratch folder and rename it; the caller holds the lock."""
    scratch = target.parent / f".{target.name}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        build(scratch)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def require_space(folder: Path, needed_bytes: int) -> None:
    """Check that the file system of an existing folder has room.

    Raises:
        PreflightError: Less than `needed_bytes` are free.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise PreflightError(
            f"{folder} has {size_text(free_bytes)} free and {size_text(needed_bytes)} are needed; "
            "free space there or set WATTDOCK_HOME to another folder"
        )


@contextmanager
def _locked(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock on a file, saying so when another process has it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another wattdock that holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
