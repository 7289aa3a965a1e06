"""Where leases lie: one folder that every user of this machine can write to, on a file system of this machine."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from wattdock.errors import PreflightError

SETTING = "WATTDOCK_LEASES"
# The first that is there, else the first that can be made: /var/lock belongs to root alone on some systems,
# /dev/shm to nobody.
DEFAULTS = (Path("/var/lock/wattdock"), Path("/dev/shm/wattdock"))
# As for /tmp: all may make files, only owners remove theirs.
MODE = 0o1777
MOUNTS = Path("/proc/self/mountinfo")
# flock there reaches other machines, or none but this process; either way it says nothing about this machine.
NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\.(sshfs|glusterfs|ceph|rclone)\S*)"
)
OCTAL = re.compile(r"\\(\d{3})")


def lease_folder() -> Path:
    """Return the folder for leases: WATTDOCK_LEASES, else the default that is there, else the first that can be made.

    One that is there comes before a better one that is not: others may hold leases in it.

    Raises:
        PreflightError: It cannot be made or written to, or lies on a network file system.
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
    advice = f"as root: install -d -m {MODE:o} {folder}; or name another folder with {SETTING}"
    try:
        _make(folder)
    except OSError as error:
        if folder.exists():
            raise PreflightError(f"the lease folder {folder} is a file; {advice}") from error
        raise PreflightError(f"cannot make the lease folder {folder}: {error.strerror}; {advice}") from error
    kind = file_system(folder, MOUNTS.read_text(encoding="utf-8"))
    if kind and NETWORK.fullmatch(kind):
        raise PreflightError(
            f"the lease folder {folder} lies on a network file system ({kind}), where locks do not hold for this "
            f"machine; name a local folder with {SETTING}"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PreflightError(f"cannot write to the lease folder {folder}: permission denied; {advice}")
    return folder


def _make(folder: Path) -> None:
    """Make the folder so that it is there with its final rights at once; mkdir's own mode is cut by the umask."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        scratch.chmod(MODE)
        scratch.rename(folder)
    except OSError:
        scratch.rmdir()
        # Another coordinator may have been faster.
        if not folder.is_dir():
            raise


def is_shared(folder: Path) -> bool:
    """Return whether every user of this machine can take leases there."""
    return stat.S_IMODE(folder.stat().st_mode) == MODE


def file_system(folder: Path, mounts: str) -> str | None:
    """Return the type of the file system that holds `folder`; None where the mounts do not tell. Pure but for links.

    Args:
        mounts: Text of /proc/self/mountinfo. Source: proc(5): the fifth field is the mount point, with blanks as
            octal escapes; the type follows the separator "-". A later mount hides an earlier one.
    """
    real, best = folder.resolve(), ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split()[4])
        if real.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, after.split()[0])
    return best[1] or None
