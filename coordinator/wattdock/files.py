"""Lock and write files and folders that others may reach, too; `opening` reads them.

A lock is waited for with a limit, and its holder is named. What is written appears whole or not at all, through a crash
or a power cut, too: it is filled in a new folder, which its process holds locked; an unlocked one was left by a killed
process. Names of files that several rooms read stand here, too. Must not know: what the files hold.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import functools
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wattdock.clock import Clock
from wattdock.errors import ConfigError, StoreError
from wattdock.opening import PROC, follow_links, is_kernels, is_trusted, open_regular, proc_path
from wattdock.output import harmless
from wattdock.text import SURROGATE, listed, whole_characters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# In a folder of results: the folder of studies' folders, and in each of those its journal; in the journal's first line:
# the folder in which the study was begun, where relative paths of its settings begin.
STUDIES, JOURNAL, BEGUN_IN = "studies", "journal.jsonl", "begun_in"
# The event of a journal's line about a stored result; the largest journal that is read: three times that of 10,000
# experiments. Parsed, it takes 27 times its size.
STORED, MAX_JOURNAL_BYTES = "stored", 64_000_000
# In a result: its figures, its records, and in a bundle, too: the hash of each file.
RESULT, RESTARTS, SUMS = "result.json", "restarts", "SHA256SUMS"
# A bundle's file name ends so; in it: what it holds, and the folder of its results.
TAR, MANIFEST, BUNDLED = ".tar", "bundle.json", "results"
# How much of a log is shown where a runner failed.
TAIL_LINES, TAIL_BYTES = 20, 64 * 1024
# The largest file of JSON, which takes some 16 times its size while it is read; results have a hundredth of it.
MAX_JSON_BYTES = 16_000_000
LOCK_MODE, LOCK_POLL_S, HOLDERS_SHOWN = 0o600, 0.1, 3
# A folder that is being filled has a name that ends so (four letters of the boot, four of its own; sockets' paths are
# short), and a mode that is sticky and closed to others. A neighbour who may rename a finished folder cannot give it
# that mode, and so cannot have its owner remove it.
NEW_NAME = re.compile(r"(?:\.|wattdock-).*([\w-]{4})[\w-]{4}", re.ASCII)
NEW_MODE, MODE_BITS = 0o1700, 0o1777
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Another machine may fill a folder on a network file system, and its locks are not seen here.
OTHER_BOOT_S = 86_400


def expanded(path: str | Path) -> Path:
    """Return a path that a person wrote with the home folder in place of a ~ or ~USER that it begins with.

    Raises:
        ConfigError: There is no such folder, or the path is not UTF-8.
    """
    try:
        return require_utf8(Path(path).expanduser())
    except (RuntimeError, ValueError) as error:
        what = f"{path}: cannot expand ~: no home directory"
        raise ConfigError(what, "write the path in full, or set HOME") from error


def require_utf8(path: Path) -> Path:
    """Return a path whose name on this system is UTF-8, which libraries take paths for.

    Raises:
        ConfigError: The path, its folder, or what a link leads to has another name in UTF-8, or none.
    """
    real = str(path)
    try:
        real = os.path.realpath(path)
        is_utf8 = os.fsencode(real) == real.encode()
    except UnicodeEncodeError:
        is_utf8 = False
    except (OSError, ValueError):
        # No folder to begin at, or a null character: refused where the path is opened.
        return path
    if not is_utf8:
        raise _no_text(real, "path", "rename it")
    return path


def require_text(text: str, kind: str) -> None:
    """Refuse a text that UTF-8 has no form for, before anything is measured whose record would hold it.

    Args:
        kind: What the text is, as in "this setting is not UTF-8".

    Raises:
        ConfigError: It holds half a surrogate pair, as Python makes of bytes that the locale cannot decode.
    """
    if SURROGATE.search(text):
        raise _no_text(text, kind, "use names and texts in UTF-8")


def _no_text(text: str, kind: str, remedy: str) -> ConfigError:
    what = f"{whole_characters(text)}: this {kind} is not UTF-8, which results and runners need"
    return ConfigError(what, f"{remedy}, or set PYTHONUTF8=1 if only this shell's locale is not UTF-8")


@contextmanager
def locked(
    path: Path, *, wait_s: float = 0, say: Callable[[str], None] = lambda _: None, shared: bool = False
) -> Iterator[int]:
    """Hold the lock on a file and yield the file's descriptor, which a child process may hold, too.

    The file is made where it is not there, and nobody else can open it: who can open a file can lock it.

    Args:
        wait_s: How long to wait for those who hold it.
        say: Receives a line that names them.
        shared: Whether others may share it.

    Raises:
        BlockingIOError: Others hold it; names them.
        OSError: The file cannot be made or opened, or is not the caller's; see `open_regular`.
    """
    with ExitStack() as stack:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, owned=True, mode=LOCK_MODE)
        stack.callback(os.close, descriptor)
        until_s, seen, named = time.monotonic() + wait_s, "", ""
        # A lock of this user's that others could open is closed to them from now on.
        if (state := os.fstat(descriptor)).st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) != LOCK_MODE:
            os.fchmod(descriptor, LOCK_MODE)
        while not try_lock(descriptor, shared=shared):
            holders = _holders(descriptor)
            if time.monotonic() >= until_s:
                waited = f" (waited {wait_s:g} s)" if wait_s else ""
                raise BlockingIOError(errno.EAGAIN, f"locked by {holders}{waited}", str(path))
            # Named when seen twice: a holder that lets go between the attempt and the look at the list is in no list.
            if holders == seen != named:
                named = holders
                say(f"waiting up to {wait_s:g} s for {holders}, holding {path}")
            seen = holders
            time.sleep(LOCK_POLL_S)
        yield descriptor


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file, if nobody else holds it; return whether it is locked.

    Raises:
        OSError: Its file system has no locks, as NFS without a lock daemon and Lustre mounted without `flock`.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        path = Path(proc_path(descriptor)).readlink()
        raise OSError(error.errno, f"its file system has no locks ({error.strerror})", str(path)) from error
    return True


def lock_pids() -> dict[str, list[int]]:
    """Return the processes that hold locks, by `file_place`, as the kernel says; none of other PID namespaces.

    Source: proc_locks(5): number, FLOCK, ADVISORY, READ or WRITE, process, device and inode, range.
    """
    holders: dict[str, list[int]] = {}
    with suppress(OSError):
        for fields in map(str.split, (PROC / "locks").read_text().splitlines()):
            if fields[1] == "FLOCK":
                holders.setdefault(fields[5], []).append(int(fields[4]))
    return holders


def file_place(state: os.stat_result) -> str:
    """Return a file's device and inode as /proc/locks has them."""
    return f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"


def _holders(descriptor: int) -> str:
    """Return in words which processes hold the lock on an open file."""
    holders = []
    for pid in lock_pids().get(file_place(os.fstat(descriptor)), []):
        process, whose = PROC / str(pid), ""
        with suppress(OSError):
            name = "".join(filter(str.isprintable, (process / "comm").read_text(errors="replace")))
            whose = f" ({name} of user {process.stat().st_uid})"
        holders.append(f"process {pid}{whose}")
    return listed(holders, HOLDERS_SHOWN) or "a process that is not visible here"


@dataclass(frozen=True)
class NewFolder:
    """A new folder, closed to others until `finish` and not taken for left behind while its descriptor is open.

    Attributes:
        descriptor: Its lock; a child process may hold it, too.
    """

    path: Path
    descriptor: int

    @classmethod
    def make(cls, parent: Path, prefix: str) -> NewFolder:
        """Make a folder whose name begins with `prefix`, and remove what killed processes left in `parent`.

        Args:
            prefix: Begins with "." or "wattdock-".

        Raises:
            OSError: It cannot be made.
        """
        remove_leftovers(parent)
        while True:
            path = parent / f"{prefix}{_boot()}{secrets.token_urlsafe(3)}"
            with suppress(FileExistsError):
                path.mkdir(NEW_MODE)
                # Before it was locked, another process may have taken it for left behind.
                if folder := _lock_folder(path):
                    return folder

    def finish(self, target: Path, *, without: int = 0) -> Path:
        """Give the folder its name, which is returned, and the mode of other folders.

        Args:
            without: Further bits that the mode lacks.

        Raises:
            OSError: There is one of that name which is not empty, or it cannot be renamed.
        """
        group = stat.S_IMODE(os.fstat(self.descriptor).st_mode) & stat.S_ISGID
        # The umask can be read only by setting it.
        os.umask(umask := os.umask(0))
        os.fchmod(self.descriptor, group | 0o777 & ~(umask | without))
        return self.path.rename(target)

    def remove(self) -> None:
        """Remove the folder unless it was finished, and unlock it; whatever else has its name by now stays."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self.descriptor), self.path.lstat()):
                # Only its content can be removed by descriptor; the last step, to remove ".", fails.
                shutil.rmtree(".", ignore_errors=True, dir_fd=self.descriptor)
                self.path.rmdir()
        os.close(self.descriptor)


@contextmanager
def new_folder(parent: Path, prefix: str) -> Iterator[NewFolder]:
    """Yield a new folder, removed when the block ends unless it was finished; see `NewFolder.make`.

    Raises:
        OSError: It cannot be made.
    """
    folder = NewFolder.make(parent, prefix)
    try:
        yield folder
    finally:
        folder.remove()


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove the folders that killed processes of this user were filling in `parent`, and return them."""
    left = []
    with suppress(OSError):
        for path in [Path(entry.path) for entry in os.scandir(parent) if NEW_NAME.fullmatch(entry.name)]:
            # Others' folders cannot be opened; what was finished before it was locked is no longer new.
            with suppress(OSError):
                if _is_new(path.lstat(), path.name) and (folder := _lock_folder(path)):
                    if _is_new(os.fstat(folder.descriptor), path.name):
                        folder.remove()
                        left.append(path)
                    else:
                        os.close(folder.descriptor)
    return left


def _lock_folder(path: Path) -> NewFolder | None:
    """Return a folder that is locked now; None where another process holds it or it is gone."""
    with ExitStack() as stack, suppress(FileNotFoundError):
        descriptor = os.open(path, FOLDER_FLAGS)
        stack.callback(os.close, descriptor)
        if try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), path.lstat()):
            stack.pop_all()
            return NewFolder(path, descriptor)
    return None


def _is_new(state: os.stat_result, name: str) -> bool:
    """Whether this user's processes, and none on another machine, were filling a folder."""
    parts = NEW_NAME.fullmatch(name)
    ours = state.st_uid == os.geteuid() and stat.S_ISDIR(state.st_mode) and state.st_mode & MODE_BITS == NEW_MODE
    return bool(ours and parts and (parts[1] == _boot() or time.time() - state.st_mtime > OTHER_BOOT_S))


def is_held(folder: Path, *, uid: int) -> bool:
    """Whether a process of a user holds the lock on a folder; what is theirs and cannot be opened counts as held."""
    try:
        descriptor = os.open(folder, FOLDER_FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        with suppress(OSError):
            return folder.lstat().st_uid == uid
        return True
    try:
        # Shared, so that two callers at once do not take each other for its holder.
        return os.fstat(descriptor).st_uid == uid and not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


@functools.cache
def _boot() -> str:
    """Return four letters for this boot, by its id, which containers share with their host."""
    return base64.urlsafe_b64encode(bytes.fromhex(Clock().identity().boot_id[:6] or "000000")).decode()


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the one at `path` when the block ends, and is durable then.

    Raises:
        OSError: There is no room, or no permission; the old file is unchanged.
    """
    with new_folder(path.parent, f".{path.name}.") as folder:
        scratch = folder.path / "new"
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    sync(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file at `path` by `content`, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(content)


def real_path(path: Path) -> Path:
    """Return the path behind all links; a circle of links ends where it closes, where `Path.resolve` would raise."""
    return Path(os.path.realpath(path))


def require_ending(output: Path, *endings: str) -> None:
    """Raise a ConfigError unless a file to write ends so; with "" among the endings, it may have none."""
    if output.suffix not in endings:
        remedy = f"name such a file{'; `wattdock results export --csv` writes CSV' * (output.suffix == '.csv')}"
        raise ConfigError(f"{output}: this is written as {' or '.join(filter(None, endings))}", remedy)


def write_output(path: Path, content: bytes, flag: str) -> None:
    """Write a file that a person named with `flag`: whole or not at all; replaces what is there.

    Raises:
        StoreError: The file cannot be written.
    """
    try:
        # A link names the file to replace, found once: it may be another link by the time of writing.
        with follow_links(path) as located:
            if strangers := [maker for maker in located.makers if not is_trusted(maker)]:
                raise OSError(errno.EPERM, f"is a link of user {min(strangers)}", str(path))
            found = None if located.descriptor is None else os.fstat(located.descriptor)
            if found and not stat.S_ISREG(found.st_mode):
                if stat.S_ISFIFO(found.st_mode) and not (is_kernels(located.folder) or is_trusted(found.st_uid)):
                    raise OSError(errno.EPERM, f"is a pipe of user {found.st_uid}", str(path))
                # A pipe or a device cannot be replaced; a pipe that nobody reads is an error. No terminal is steered.
                opened = os.open(proc_path(located.found), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(opened, "wb") as file:
                    os.set_blocking(file.fileno(), True)
                    file.write(harmless(content.decode(errors="replace")).encode() if file.isatty() else content)
            else:
                write_whole(Path(proc_path(located.folder), located.name), content)
    except OSError as error:
        lacks_folder = isinstance(error, FileNotFoundError) and not path.parent.exists()
        why = f"there is no folder {path.parent}" if lacks_folder else error.strerror or error
        remedy = f"{'make it, or ' * lacks_folder}choose another file with {flag}"
        raise StoreError(f"cannot write {path}: {why}", remedy) from error


def last_lines(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, of its last 64 KiB at most; empty where there is no log, or a link to one."""
    with suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
