"""Who measures on what: one lock file per GPU and one for the machine, across users and coordinators.

A lease lasts as long as a process keeps its file flocked, never longer: a crashed holder blocks nobody. The file's text
names the holder, and counts only while the lock is held. All files lie in one folder that every user of this machine
can write to, on a file system of this machine. Knows no GPUs, only names.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wattdock.errors import PreflightError
from wattdock.host.processes import user_name
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUFFIX = ".lease"
MACHINE, CPU = "machine", "cpu"
# A reader (`gpus --watch`) holds a lock for microseconds, which must not refuse a measurement.
GRACE_S = 0.3
GRACE_POLL_S, POLL_S = 0.02, 0.25
MAX_NOTE_BYTES, MAX_WORD = 4096, 120
LEASE_FILE_MODE = 0o666
SETTING = "WATTDOCK_LEASES"
# The first that exists, else the first that can be made: only root can write to /var/lock on some systems.
DEFAULTS = (Path("/var/lock/wattdock"), Path("/dev/shm/wattdock"))
# As for /tmp: all may make files, only owners remove theirs.
FOLDER_MODE = 0o1777
MOUNTS = Path("/proc/self/mountinfo")
OCTAL = re.compile(r"\\(\d{3})")
# flock there reaches other machines, or only this process; either way it says nothing about this machine.
NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\.(sshfs|glusterfs|ceph|rclone)\S*")

Exclusive = Literal["machine", "gpus"]


@dataclass(frozen=True)
class Holder:
    """The holder that a lease file names; `pid` is for people only, since ids are used again."""

    user: str
    pid: int
    experiment: str
    since_utc: str

    def __str__(self) -> str:
        return f"{self.user} (process {self.pid}, {self.experiment!r}, since {self.since_utc})"


UNNAMED_HOLDER = Holder("a process that its file does not name", 0, "", "")


@dataclass(frozen=True)
class LeaseRequest:
    """The leases that a run needs.

    Attributes:
        names: GPU UUIDs, or "cpu" for a run without GPU.
        exclusive: "machine" lets no other wattdock measure on this machine meanwhile; "gpus" lets it on other GPUs.
        wait_s: How long to wait for those who hold it.
    """

    names: tuple[str, ...]
    exclusive: Exclusive
    experiment: str
    wait_s: float = 0.0


class LeaseHeldError(Exception):
    """Another process holds a lease; the text names the holder."""


@contextmanager
def hold(request: LeaseRequest, say: Callable[[str], None], folder: Path | None = None) -> Iterator[tuple[int, ...]]:
    """Hold the leases inside the block; yield their descriptors, for a child process that is to hold them too.

    All or none are taken, so that two who each have what the other needs cannot wait for ever.

    Args:
        say: Receives a line with the holder that the run waits for.

    Raises:
        PreflightError: Others hold a lease after `wait_s`, or the lease folder does not serve.
    """
    place = folder or folder_in_use()
    began_s, announced = time.monotonic(), ""
    while True:
        waited_s = time.monotonic() - began_s
        with ExitStack() as stack:
            try:
                descriptors = _take_all(stack, place, request)
            except LeaseHeldError as refusal:
                if waited_s > max(request.wait_s, GRACE_S):
                    raise PreflightError(_advice(str(refusal), request)) from None
                if waited_s > GRACE_S and str(refusal) != announced:
                    announced = str(refusal)
                    say(f"waiting up to {request.wait_s:g} s: {announced}")
            else:
                yield descriptors
                return
        # Random, so that waiting processes do not all try at the same moments.
        time.sleep((GRACE_POLL_S if waited_s <= GRACE_S else POLL_S) * random.uniform(0.5, 1.5))


def holders(folder: Path | None = None) -> dict[str, Holder]:
    """Return who holds which lease now, by name; disturbs no holder.

    Raises:
        PreflightError: The lease folder does not serve.
    """
    place = folder or folder_in_use()
    by_name = {}
    for path in sorted(place.glob(f"*{SUFFIX}")):
        # A lease file that was just removed has no holder.
        with ExitStack() as stack, suppress(FileNotFoundError):
            descriptor = _open_existing(stack, path, os.O_RDONLY)
            if not _lock(descriptor, fcntl.LOCK_SH):
                by_name[path.name.removesuffix(SUFFIX)] = _read_holder(descriptor)
    return by_name


def _take_all(stack: ExitStack, folder: Path, request: LeaseRequest) -> tuple[int, ...]:
    whole = request.exclusive == "machine"
    descriptors = [_open(stack, folder / f"{MACHINE}{SUFFIX}")]
    if not _lock(descriptors[0], fcntl.LOCK_EX if whole else fcntl.LOCK_SH):
        raise LeaseHeldError(_machine_holders(descriptors[0], folder))
    for name in sorted(request.names):
        descriptor = _open(stack, folder / f"{name}{SUFFIX}")
        if not _lock(descriptor, fcntl.LOCK_EX):
            raise LeaseHeldError(f"{name} is leased by {_read_holder(descriptor)}")
        descriptors.append(descriptor)
    holder = _ourselves(request.experiment)
    for descriptor in descriptors if whole else descriptors[1:]:
        _write_holder(descriptor, holder, folder)
    return tuple(descriptors)


def _machine_holders(machine: int, folder: Path) -> str:
    """Who holds the machine alone, or who shares it."""
    if not _lock(machine, fcntl.LOCK_SH):
        return f"this machine is in exclusive use by {_read_holder(machine)}"
    fcntl.flock(machine, fcntl.LOCK_UN)
    others = "; ".join(f"{name} by {holder}" for name, holder in holders(folder).items() if name != MACHINE)
    return f"this machine is shared by other measurements: {others or 'a measurement that has just ended'}"


def _advice(reason: str, request: LeaseRequest) -> str:
    waited = f" (waited {request.wait_s:g} s)" if request.wait_s else ""
    wait = "wait longer" if request.wait_s else "wait"
    can_share = request.exclusive == "machine" and CPU not in request.names
    share = ", or measure beside them, which is not publishable, with --set exclusive=gpus" if can_share else ""
    return f"{reason}{waited}; {wait} with --wait SECONDS{share}"


def _ourselves(experiment: str) -> Holder:
    return Holder(user_name(), os.getpid(), experiment[:MAX_WORD], datetime.now(UTC).isoformat(timespec="seconds"))


def _open(stack: ExitStack, path: Path) -> int:
    """Open a lease file, made where it is not there, until `stack` ends.

    Never with O_CREAT alone: in a sticky folder the kernel may refuse that for another user's file
    (proc(5), fs.protected_regular).
    """
    while True:
        try:
            return _open_existing(stack, path, os.O_RDWR)
        except FileNotFoundError:
            _make(path)


def _open_existing(stack: ExitStack, path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(path, error, f"remove it, or chmod {LEASE_FILE_MODE:o} it, as its owner") from error
    stack.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise PreflightError(f"the lease {path} is not a file; remove it")
    return descriptor


def _make(path: Path) -> None:
    """Make an empty lease file that every user can write to."""
    try:
        with _no_umask():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, LEASE_FILE_MODE))
    except FileExistsError:
        # Another coordinator was faster.
        pass
    except OSError as error:
        raise _refused(path, error, f"choose another folder with {SETTING}") from error


@contextmanager
def _no_umask() -> Iterator[None]:
    """Files and folders made inside have their final rights at once; chmod would leave others a moment without."""
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)


def _refused(path: Path, error: OSError, advice: str) -> PreflightError:
    return PreflightError(f"cannot use the lease {path}: {error.strerror or error}; {advice}")


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(descriptor: int, holder: Holder, folder: Path) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json_text(asdict(holder)).encode() + b"\n", 0)
    except OSError as error:
        raise _refused(folder, error, f"make room, or choose another folder with {SETTING}") from error


def _read_holder(descriptor: int) -> Holder:
    try:
        note = json.loads(os.pread(descriptor, MAX_NOTE_BYTES, 0))
        return Holder(_plain(note["user"]), int(note["pid"]), _plain(note["experiment"]), _plain(note["since_utc"]))
    except (ValueError, KeyError, TypeError):
        # A holder takes the lock first and writes its name a moment later.
        return UNNAMED_HOLDER


def _plain(word: object) -> str:
    """Return a note without control characters: every user can write one, and none may steer a terminal."""
    return "".join(letter for letter in str(word) if letter.isprintable())[:MAX_WORD]


def folder_in_use() -> Path:
    """Return the folder for leases: WATTDOCK_LEASES, else the default that exists, else the first that can be made.

    A folder that exists comes before a better one that does not: others may hold leases in it.

    Raises:
        PreflightError: As `ready_folder`.
    """
    if named := os.environ.get(SETTING):
        return ready_folder(Path(named).expanduser().absolute())
    there = [folder for folder in DEFAULTS if folder.is_dir()]
    possible = [folder for folder in DEFAULTS if os.access(folder.parent, os.W_OK | os.X_OK)]
    return ready_folder([*there, *possible, DEFAULTS[-1]][0])


def ready_folder(folder: Path) -> Path:
    """Return `folder`, made where it is not there.

    Raises:
        PreflightError: It cannot be made or written to, or lies on a network file system.
    """
    advice = f"as root: install -d -m {FOLDER_MODE:o} {folder}; or name another folder with {SETTING}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _no_umask():
            folder.mkdir(FOLDER_MODE, exist_ok=True)
    except FileExistsError as error:
        raise PreflightError(f"the lease folder {folder} is a file; {advice}") from error
    except OSError as error:
        raise PreflightError(f"cannot make the lease folder {folder}: {error.strerror}; {advice}") from error
    if NETWORK.fullmatch(kind := _file_system(folder)):
        raise PreflightError(
            f"the lease folder {folder} lies on a network file system ({kind}), where locks do not hold for this "
            f"machine; name a local folder with {SETTING}"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PreflightError(f"cannot write to the lease folder {folder}: permission denied; {advice}")
    return folder


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`.

    Source: proc(5), mountinfo: the fifth field is the mount point, with blanks as octal escapes; the type follows the
    separator "-". Of equal mount points the last hides the others.
    """
    real, type_by_point = folder.resolve(), {}
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(OCTAL.sub(lambda escape: chr(int(escape[1], 8)), before.split()[4]))
        type_by_point[point] = after.split()[0]
    return next((type_by_point[place] for place in (real, *real.parents) if place in type_by_point), "")


def is_shared(folder: Path) -> bool:
    """Return whether every user of this machine can take leases there."""
    return stat.S_IMODE(folder.stat().st_mode) == FOLDER_MODE
