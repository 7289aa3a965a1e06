"""Where wattdock keeps things, and whether there is room."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock import files, opening
from wattdock.errors import Cause, PreflightError, os_errors_as
from wattdock.files import STUDIES, NewFolder, expanded, locked, new_folder, require_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MIN_FREE_BYTES = 50_000_000
SOCKET_NAME = "r.sock"
# Source: unix(7): sun_path holds 108 bytes with its closing zero. The margin is for what libraries put before it.
MAX_SOCKET_PATH_BYTES = 100
OWN_HOME, OTHER_HOME = "set WATTDOCK_HOME to a folder of yours", "set WATTDOCK_HOME to another folder"
# Longer than any download and conversion takes.
BUILD_WAIT_S = 3600
SCRATCH_PREFIX, SOCKET_PREFIX = "wattdock-run-", "wattdock-"


def wattdock_home() -> Path:
    """Return the folder for models and caches: `WATTDOCK_HOME`, else under the XDG data folder.

    Raises:
        ConfigError: A ~ stands for no folder, or this user has no home folder.
    """
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return expanded(os.environ.get("WATTDOCK_HOME") or f"{data}/wattdock").absolute()


def engine_cache(home: Path) -> Path:
    """Return this user's folder for what engines compile, in WATTDOCK_HOME, which several users may share."""
    return home.absolute() / f"cache-{os.geteuid()}"


def make_own(folder: Path) -> None:
    """Make a folder that is closed to others, where it is not there.

    Raises:
        PreflightError: It cannot be made, or others could change what is in it, and so what is run from it.
    """
    with os_errors_as(PreflightError, f"cannot make {folder}", OWN_HOME):
        # Not `exist_ok`: it looks through a link, which the kernel may forbid.
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise PreflightError(f"others can change {folder}", f"remove it, or {OWN_HOME}", cause=Cause.OTHERS_COULD_WRITE)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder under the temporary folder, removed when the block ends; locked until then.

    Raises:
        PreflightError: It cannot be made, or the temporary folder is another user's.
    """
    folder = _new_folder(_temporary_folder(), SCRATCH_PREFIX, "TMPDIR")
    try:
        yield folder.path
    finally:
        folder.remove()


def remove_leftovers(output_dir: Path, home: Path) -> list[Path]:
    """Remove what killed commands of this user left half made among its files, and return it.

    Args:
        output_dir: The folder of results.
        home: WATTDOCK_HOME.
    """
    sockets, _ = _socket_place(os.environ)
    places = {Path(tempfile.gettempdir()), sockets}
    for folder, within in ((output_dir, f"{STUDIES}/*/*"), (home, "*")):
        places |= {folder, *folder.glob(within)} if os.access(folder, os.X_OK) else set()
    return [left for place in places for left in files.remove_leftovers(place)]


def _temporary_folder() -> Path:
    """Return the temporary folder.

    Raises:
        PreflightError: It belongs to another user, who could exchange what is made in it.
    """
    folder = Path(tempfile.gettempdir())
    if not opening.is_trusted(uid := folder.stat().st_uid):
        raise PreflightError(
            f"the temporary folder {folder} belongs to user {uid}",
            "set TMPDIR to one of yours",
            cause=Cause.OTHERS_COULD_WRITE,
        )
    return folder


def require_temporary() -> None:
    """Check the folders that scratch files and sockets will be made in.

    Raises:
        ConfigError: The path of one is not UTF-8.
        PreflightError: The temporary folder belongs to another user.
    """
    for folder in (_temporary_folder(), _socket_place(os.environ)[0]):
        require_utf8(folder)


def require_writable(folder: Path, *, setting: str) -> int:
    """Return the free bytes for `folder`, which exists or can be made, can be written to, and has room; makes nothing.

    Raises:
        ConfigError: Its path is not UTF-8.
        PreflightError: Names the folder and the setting that would change it.
    """
    require_utf8(folder)
    existing = next(up for up in (folder.absolute(), *folder.absolute().parents) if os.access(up, os.F_OK))
    change = f"choose another folder with {setting}"
    if not existing.is_dir():
        # No colon behind a path: what follows `/etc/passwd: ` would pass for a password.
        raise PreflightError(f"{existing} is a file", change)
    if not os.access(existing, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
        why = os.strerror(errno.EROFS if is_read_only else errno.EACCES).lower()
        raise PreflightError(f"cannot write to {folder}: {why} in {existing}", change)
    return require_space(existing, MIN_FREE_BYTES, change)


def require_space(folder: Path, needed_bytes: int, change: str = OTHER_HOME) -> int:
    """Return the free bytes of an existing folder's file system.

    Args:
        change: How to have files elsewhere.

    Raises:
        PreflightError: Less than `needed_bytes` are free.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        what = f"{folder} has {size_text(free_bytes)} free and {size_text(needed_bytes)} are needed"
        raise PreflightError(what, f"free space there or {change}", cause=Cause.NO_SPACE)
    return free_bytes


def build_once(
    target: Path, build: Callable[[Path], object], *, progress: Callable[[str], None], needed_bytes: int = 0
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
        with locked(lock, wait_s=BUILD_WAIT_S, say=progress):
            if not target.is_dir():
                require_space(target.parent, needed_bytes)
                with new_folder(target.parent, f".{target.name}.") as scratch:
                    build(scratch.path)
                    scratch.finish(target)
    except OSError as error:
        what = f"cannot {f'use {lock}' if error.filename == str(lock) else f'write {target}'}"
        raise PreflightError(
            f"{what}: {error.strerror or error}", f"free space there or {OTHER_HOME}", cause=Cause.NO_SPACE
        ) from error


def make_socket_folder(environ: Mapping[str, str]) -> NewFolder:
    """Make a new folder, closed to others, for a socket named `r.sock` and return it.

    It lies in `$XDG_RUNTIME_DIR` where that variable names a folder of this user's, else in the temporary folder.

    Raises:
        PreflightError: The socket's path would be too long, or the folder cannot be made.
    """
    parent, variable = _socket_place(environ)
    folder = _new_folder(parent, SOCKET_PREFIX, variable)
    socket = folder.path / SOCKET_NAME
    size_bytes = len(os.fsencode(socket))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        folder.remove()
        raise PreflightError(
            f"socket path {socket} has {size_bytes} bytes, {MAX_SOCKET_PATH_BYTES} are allowed: "
            f"set {variable} to a shorter folder"
        )
    return folder


def _socket_place(environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return where folders of sockets are made, and the variable that names it; after `su` it may be another's."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    usable = runtime.is_absolute() and os.access(runtime, os.W_OK | os.X_OK) and runtime.is_dir()
    if usable and runtime.stat().st_uid == os.geteuid():
        return runtime, "XDG_RUNTIME_DIR"
    return _temporary_folder(), "TMPDIR"


def _new_folder(parent: Path, prefix: str, variable: str) -> NewFolder:
    remedy = f"set {variable} to a writable local folder"
    with os_errors_as(PreflightError, f"cannot make a folder in {parent}", remedy):
        return NewFolder.make(parent, prefix)
