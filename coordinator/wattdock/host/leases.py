"""Who measures on what: lock files for the GPUs and the machine, across users and coordinators.

A lease lasts as long as a process keeps its file flocked, never longer: a crashed holder blocks nobody. Each user locks
files of their own, then looks whether another one of that name is locked; nothing is read from a file. All files lie in
one folder, on a file system of this machine. Knows no GPUs, only names.
"""

from __future__ import annotations

import errno
import os
import random
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wattdock.errors import Cause, PreflightError
from wattdock.files import expanded, file_place, lock_pids, try_lock
from wattdock.host.folders import wattdock_home
from wattdock.host.processes import owner_of, user_name
from wattdock.opening import open_regular, root_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

MACHINE, CPU = "machine", "cpu"
# Name of a lease file: the lease's name, then a part that differs between users.
LEASE = re.compile(r"([\w-]+)\.\w+\.lease", re.ASCII)
# How long a run retries before it gives up: readers (`wattdock gpus`) and failed attempts hold a lock for microseconds.
GRACE_S = 0.3
# Least and longest time between two attempts, which grows with the wait, since an attempt locks files for a moment.
LEAST_POLL_S, MOST_POLL_S = 0.02, 2.0
SETTING = "WATTDOCK_LEASES"
# Folder for all users, which only root makes.
SHARED = Path("/var/lock/wattdock")
# As for /tmp, all may make files and only owners remove theirs. Whoever can read a file can see whether it is locked.
FOLDER_MODE, PRIVATE_MODE, FILE_MODE = 0o1777, 0o700, 0o644
# Errors of opening pipes, links, devices, and files that are gone, barred or guarded by fcntl(2): these are no leases.
NO_LEASE = (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.ENOENT, errno.EACCES, errno.EAGAIN)
# Errors of flock(2) on NFS without a lock daemon, on Lustre mounted without `flock`, and on other remote file systems.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
MOUNTS = Path("/proc/self/mountinfo")
# File systems on which flock reaches other machines, or only this process, and so says nothing about this machine.
NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\.(sshfs|glusterfs|ceph|rclone)\S*")

# Descriptor of each lease file.
HeldLeases = Mapping[Path, int]


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as the kernel says.

    Attributes:
        user: The process's; the file's owner where no process is shown.
        pid, command: None for a process in another PID namespace, or one that ended before its runner.
    """

    user: str
    pid: int | None
    command: str | None
    since_utc: str

    def __str__(self) -> str:
        process = f"process {self.pid}, {self.command}" if self.pid else "a process that is not visible here"
        return f"{self.user} ({process}, since {self.since_utc})"


@dataclass(frozen=True)
class LeaseRequest:
    """The leases that a run needs.

    Attributes:
        names: GPU UUIDs, or "cpu" for a run without GPU.
        exclusive: "machine" lets no other wattdock measure on this machine meanwhile; "gpus" lets it on other GPUs.
        wait_s: How long to wait for their holders.
        has_node: Whether a scheduler keeps other users off, as in `fault`.
    """

    names: tuple[str, ...]
    exclusive: Literal["machine", "gpus"]
    wait_s: float = 0.0
    has_node: bool = False


@contextmanager
def hold(request: LeaseRequest, say: Callable[[str], None], folder: Path | None = None) -> Iterator[HeldLeases]:
    """Hold the leases inside the block; yield their files, for a child process that is to hold them too.

    All or none are taken, so that two runs that each have what the other needs cannot wait for ever.

    Args:
        say: Receives a line with the holder that the run waits for, and a line if others' leases are not seen.

    Raises:
        PreflightError: Others hold a lease after `wait_s`, or the lease folder does not serve.
    """
    place = folder or folder_in_use()
    began_s, announced = time.monotonic(), ""
    while True:
        waited_s = time.monotonic() - began_s
        with ExitStack() as stack:
            try:
                with _refused(place):
                    held = _take_all(stack, place, request)
            except PreflightError as refusal:
                if refusal.cause != Cause.LEASE_HELD or waited_s > max(request.wait_s, GRACE_S):
                    raise
                if waited_s > GRACE_S and refusal.what != announced:
                    announced = refusal.what
                    say(f"waiting up to {request.wait_s:g} s: {announced}")
            else:
                if not request.has_node and (reason := unshared(place)):
                    say(str(reason))
                yield held
                return
        # Random, so that waiting processes do not all try at the same moments.
        time.sleep(min(MOST_POLL_S, max(LEAST_POLL_S, waited_s / 4)) * random.uniform(0.5, 1.5))


def holders(folder: Path | None = None, besides: Collection[int] = ()) -> dict[str, Holder]:
    """Return who holds which lease now, by name; disturbs no holder.

    Args:
        besides: Descriptors of lease files that are left out.

    Raises:
        PreflightError: The lease folder does not serve.
    """
    place, ours = folder or folder_in_use(), [os.fstat(descriptor) for descriptor in besides]
    held = {}
    for path, descriptor in _lease_files(place):
        state, name = os.fstat(descriptor), path.name.partition(".")[0]
        # Others may link to a file that somebody holds: it has the name that its owner wrote into it.
        is_its_name = state.st_nlink == 1 or os.pread(descriptor, len(path.name), 0) == name.encode()
        is_ours = any(os.path.samestat(state, own) for own in ours)
        with _refused(place):
            if is_its_name and not is_ours and not try_lock(descriptor, shared=True):
                held[name] = state
    return _holders(held)


def fault(held: HeldLeases, *, has_node: bool = False) -> str | None:
    """Return why others may measure although these leases are held, and what to do; None where they cannot.

    Args:
        has_node: Whether a scheduler keeps other users' jobs off this machine or its GPUs, where leases need not reach
            them.
    """
    for path, descriptor in held.items():
        with suppress(OSError):
            if os.path.samestat(path.lstat(), os.fstat(descriptor)):
                continue
        return f"the lease {path} was removed or replaced meanwhile; let nothing clean its folder"
    reason = None if has_node else unshared(next(iter(held)).parent)
    return str(reason) if reason else None


def _take_all(stack: ExitStack, folder: Path, request: LeaseRequest) -> HeldLeases:
    """Lock our own files, then look at everybody's: of two who do so at once, at least one sees the other."""
    whole = request.exclusive == "machine"
    files = {name: _own_file(stack, folder, name) for name in {*request.names, *([MACHINE] if whole else [])}}
    barred = {name: file for name, (_, file) in files.items() if not try_lock(file)}
    held = holders(folder, besides=[file for name, (_, file) in files.items() if name not in barred])
    # Whoever reads one of our files can lock it.
    held |= _holders({name: os.fstat(file) for name, file in barred.items() if name not in held})
    reason = None
    if MACHINE in held:
        reason = f"this machine is in exclusive use by {held[MACHINE]}"
    elif name := next((name for name in sorted(request.names) if name in held), None):
        reason = f"{name} is leased by {held[name]}"
    elif whole and held:
        others = "; ".join(f"{name} by {holder}" for name, holder in held.items())
        reason = f"this machine is shared by other measurements: {others}"
    if reason:
        wait = f"wait longer than {request.wait_s:g} s" if request.wait_s else "wait"
        share = ", or measure beside them, which is not publishable, with --set exclusive=gpus"
        advice = f"{wait} with wait_s (--wait SECONDS){share if whole and CPU not in request.names else ''}"
        raise PreflightError(reason, advice, cause=Cause.LEASE_HELD)
    own = dict(files.values())
    for descriptor in own.values():
        os.utime(descriptor)
    return own


def _own_file(stack: ExitStack, folder: Path, name: str) -> tuple[Path, int]:
    """Open our own file for a lease until `stack` ends, made where there is none."""
    for path, descriptor in _lease_files(folder, name):  # noqa: B007  (returned)
        state = os.fstat(descriptor)
        # Another user may have moved or linked one of our files here.
        if (state.st_uid, state.st_nlink, stat.S_IMODE(state.st_mode)) == (os.geteuid(), 1, FILE_MODE):
            own = os.dup(descriptor)
            break
    else:
        path = folder / f"{name}.{secrets.token_hex(4)}.lease"
        with _refused(folder):
            own = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            os.fchmod(own, FILE_MODE)
            # A full disk has no room for the name; then a lease that somebody links to is not seen.
            with suppress(OSError):
                os.write(own, name.encode())
    stack.callback(os.close, own)
    return path, own


def _lease_files(folder: Path, name: str = "") -> Iterator[tuple[Path, int]]:
    """Yield the path of each lease file, of this name or of all, and a descriptor that is closed afterwards."""
    with _refused(folder):
        matches = ((path, LEASE.fullmatch(path.name)) for path in folder.iterdir())
        for path in sorted(path for path, match in matches if match and name in ("", match[1])):
            try:
                descriptor = open_regular(path)
            except OSError as error:
                if error.errno in NO_LEASE:
                    continue
                raise
            with os.fdopen(descriptor):
                yield path, descriptor


def _holders(files: Mapping[str, os.stat_result]) -> dict[str, Holder]:
    """Return who holds the locks on files, by name: a process, or the file's owner where no process is to be seen."""
    pids, holders = lock_pids() if files else {}, {}
    for name, state in files.items():
        pid = next(iter(pids.get(file_place(state), ())), 0)
        user, command = owner_of(pid)
        # The file's owner can set any time.
        since = datetime.fromtimestamp(min(max(0, state.st_mtime), time.time()), UTC)
        holders[name] = Holder(
            user or user_name(state.st_uid),
            pid if user else None,
            "".join(filter(str.isprintable, command)) if command else None,
            since.isoformat(timespec="seconds"),
        )
    return holders


def folder_in_use() -> Path:
    """Return the folder for leases: WATTDOCK_LEASES, else the one of all users, else one of this user alone.

    Raises:
        ConfigError: As `expanded`.
        PreflightError: As `ready_folder`.
    """
    if named := os.environ.get(SETTING):
        return ready_folder(expanded(named).absolute())
    for folder in (SHARED, Path(tempfile.gettempdir(), f"wattdock-leases-{os.geteuid()}"), wattdock_home() / "leases"):
        with suppress(PreflightError):
            return ready_folder(folder)
    return ready_folder(SHARED)


def ready_folder(folder: Path) -> Path:
    """Return `folder`, made where it is not there: by root for all users, by others for themselves.

    Raises:
        PreflightError: It cannot be made or written to, is not safe from other users, or lies on a network file system.
    """
    with _refused(folder):
        is_new = (folder != SHARED or os.geteuid() == 0) and not os.path.lexists(folder)
        if is_new:
            folder.mkdir(PRIVATE_MODE, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            state = os.fstat(descriptor)
            if is_new and state.st_uid == os.geteuid() == 0:
                os.fchmod(descriptor, FOLDER_MODE)
        finally:
            os.close(descriptor)
        # In a rootless container root's folder belongs to the number that stands for all unknown users.
        if state.st_uid not in (os.geteuid(), root_uid()):
            raise OSError(errno.EPERM, f"it belongs to {user_name(state.st_uid)}")
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not state.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, "users can remove each other's files there")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, "it cannot be written to")
    # Source: proc(5), mountinfo: the third field is the device; the type follows the separator "-".
    device = f"{os.major(state.st_dev)}:{os.minor(state.st_dev)}"
    mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    kind = next((line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == device), "")
    if NETWORK.fullmatch(kind):
        raise PreflightError(
            f"the lease folder {folder} lies on a network file system ({kind}), where locks do not hold for this "
            "machine",
            f"name a local folder with {SETTING}",
        )
    return folder


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a PreflightError with what root has to do."""
    try:
        yield
    except OSError as error:
        # A folder of root's on a file system without locks serves nobody.
        advice = f"name a local folder with {SETTING}"
        if error.errno not in NO_LOCKS:
            advice = f"{_remedy(folder)}; or name another folder with {SETTING}"
        raise PreflightError(f"cannot use the lease folder {folder}: {error.strerror}", advice) from error


def _remedy(folder: Path) -> str:
    """Return what root has to do; `mkdir` follows no link that somebody puts there meanwhile."""
    before = "remove what is there, then " if os.path.lexists(folder) else ""
    return f"as root: {before}mkdir -m {FOLDER_MODE:o} {folder}"


def unshared(folder: Path) -> PreflightError | None:
    """Return why leases in `folder` do not keep off other users; None where they do."""
    state = folder.stat()
    if state.st_uid == root_uid() and stat.S_IMODE(state.st_mode) == FOLDER_MODE:
        return None
    remedy = _remedy(folder if os.environ.get(SETTING) else SHARED)
    return PreflightError(f"other users' measurements are not seen: leases lie in {folder}", remedy)
