"""Where wattdock keeps things, and whether there is room."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIN_FREE_BYTES = 50_000_000
SOCKET_NAME = "r.sock"
# Source: unix(7): sun_path holds 108 bytes with its closing zero. The margin is for what libraries put before it.
MAX_SOCKET_PATH_BYTES = 100
SCRATCH_PREFIX, SCRATCH_LOCK = "wattdock-run-", "lock"


def wattdock_home() -> Path:
    """Return the folder for models and caches: `WATTDOCK_HOME`, else under the XDG data folder."""
    if home := os.environ.get("WATTDOCK_HOME"):
        return Path(home).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "wattdock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder under the temporary folder, removed when the block ends.

    Folders that killed coordinators left behind are removed, too: those in use are flocked.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / SCRATCH_LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    while True:
        with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX) as name, (Path(name) / SCRATCH_LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Before it was locked, another coordinator may have taken it for left behind.
            if Path(lock.name).exists():
                yield Path(name)
                return


def require_writable(folder: Path, *, setting: str, free_bytes: int = MIN_FREE_BYTES) -> None:
    """Check that `folder` exists or can be made, can be written to, and has room; makes nothing.

    Raises:
        PreflightError: Names the folder and the setting that would change it.
    """
    existing = next(up for up in (folder.absolute(), *folder.absolute().parents) if up.exists())
    change = f"choose another folder with {setting}"
    if not existing.is_dir():
        raise PreflightError(f"cannot write to {folder}: {existing} is a file; {change}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PreflightError(f"cannot write to {folder}: no permission to write in {existing}; {change}")
    disk = shutil.disk_usage(existing)
    if disk.total == 0:
        raise PreflightError(f"cannot write to {folder}: {existing} is on no disk; {change}")
    free = disk.free
    if free < free_bytes:
        raise PreflightError(
            f"only {size_text(free)} free for {folder}, at least {size_text(free_bytes)} are needed; "
            f"free some or {change}"
        )


def make_socket_folder(environ: Mapping[str, str]) -> Path:
    """Make a new folder of mode 0700 for a socket named `r.sock` and return it.

    It lies in `$XDG_RUNTIME_DIR/wattdock` where that variable names a folder, else in the temporary folder.

    Raises:
        PreflightError: The socket's path would be too long, or the folder cannot be made.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    has_runtime = Path(runtime).is_absolute() and Path(runtime).is_dir()
    variable = "XDG_RUNTIME_DIR" if has_runtime else "TMPDIR"
    parent = Path(runtime, "wattdock") if has_runtime else Path(tempfile.gettempdir())
    name = secrets.token_hex(4)
    folder = parent / (name if has_runtime else f"wattdock-{name}")
    size_bytes = len(os.fsencode(folder / SOCKET_NAME))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        raise PreflightError(
            f"socket path {folder / SOCKET_NAME} has {size_bytes} bytes, {MAX_SOCKET_PATH_BYTES} are allowed: "
            f"set {variable} to a shorter folder"
        )
    try:
        if has_runtime:
            parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise PreflightError(f"cannot make {folder}: {error.strerror}; set {variable} to a writable folder") from error
    return folder
