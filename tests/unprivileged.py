"""Run commands as a real unprivileged user, also where the suite runs as root.

Permission checks mean nothing to root. There, a command gets uid 1500 and a mount namespace of its own in which the
folders it needs can be reached even when they lie below one that only root may enter (the interpreter in root's home,
the suite's temporary folder).
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

UID = 1500
# A second user.
OTHER_UID = UID + 1
FROM_US = ("PATH", "LANG", "PIP_CERT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
REPO = Path(__file__).resolve().parents[1]


def alone(room: str) -> str:
    """Return how a program begins that needs a module of a room and not its door, which imports all the others."""
    door = f"wattdock.{room}"
    return f"""
import sys, types, wattdock
sys.modules[{door!r}] = types.ModuleType({door!r})
sys.modules[{door!r}].__path__ = [wattdock.__path__[0] + "/{room}"]
"""


def user_home(tmp_path: Path) -> Path:
    """Make `tmp_path/home`, owned by the unprivileged user, and return it.

    In it are a `tmp` folder, and one for leases that is everybody's, as root makes it.
    """
    home = tmp_path / "home"
    for folder in (home, home / "tmp"):
        folder.mkdir(mode=0o755, exist_ok=True)
        give_to_user(folder)
    (home / "leases").mkdir(exist_ok=True)
    (home / "leases").chmod(0o1777)
    return home


@contextmanager
def kernel_protection(value: int) -> Iterator[None]:
    """Switch the kernel's protection of folders that are open to all on or off; skip the test where that cannot be.

    Source: proc(5), /proc/sys/fs/protected_*; only the lock keeps two suites on one machine from mixing up the values.
    """
    try:
        files = [file.open("r+") for file in sorted(Path("/proc/sys/fs").glob("protected_*"))]
    except OSError as error:
        pytest.skip(f"cannot set {error.filename}: {error.strerror}")
    fcntl.flock(files[0], fcntl.LOCK_EX)
    before = [file.read() for file in files]
    try:
        for file in files:
            Path(file.name).write_text(str(value))
        yield
    finally:
        for file, old in zip(files, before, strict=True):
            Path(file.name).write_text(old)
        for file in files:
            file.close()


def give_to_user(path: Path) -> None:
    """Make the unprivileged user the owner of one file or folder."""
    if os.getuid() == 0:
        os.chown(path, UID, UID)


def run_as_user(
    cmd: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as the unprivileged user; its output is captured as text.

    Args:
        cmd: The command, its program by absolute path.
        env: Added to a bare environment; HOME should be `user_home(tmp_path)`.
        cwd: Its working folder; what lies in HOME and in here can be reached whatever stands above it.
        timeout: Seconds.
    """
    with popen_as_user(cmd, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(cmd), process.returncode, out, err)


def popen_as_user(
    cmd: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    uid: int = UID,
    groups: Sequence[int] = (),
    reach: Sequence[Path] = (),
    within: Sequence[str] = (),
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a command as the unprivileged user; skips the test, with the reason, where this machine cannot.

    Args:
        within: A command of root's that all of it runs under.
        reach: Further folders that it needs.
        uid: Another one for a second user; where the suite does not run as root, both are who runs it.
        groups: That the user is in besides its own.
    """
    home = Path(env.get("HOME", cwd))
    full = {
        **{name: os.environ[name] for name in FROM_US if name in os.environ},
        "HOME": str(home),
        "TMPDIR": str(short_name(home / "tmp")),
        "PYTHONDONTWRITEBYTECODE": "1",
        # vLLM imports itself twice where it has not yet noted what a class of models can do.
        "XDG_CACHE_HOME": str(_caches()),
        # What else runs on this machine must not be waited for.
        "WATTDOCK_LEASES": str(home / "leases"),
        **env,
    }
    command = [str(word) for word in cmd]
    if os.getuid() != 0:
        return subprocess.Popen([*within, *command], env=full, cwd=cwd, **options)
    if reason := unable():
        pytest.skip(reason)
    others = f"--groups {','.join(map(str, groups))}" if groups else "--clear-groups"
    needed = (Path(sys.prefix), Path(sys.base_prefix), REPO, home, cwd, *reach)
    script = "\n".join(
        [
            "set -e",
            *mounts_for(needed),
            f"cd {shlex.quote(str(cwd))}",
            f"exec setpriv --reuid {uid} --regid {uid} {others} {shlex.join(command)}",
        ]
    )
    return subprocess.Popen([*within, "unshare", "--mount", "sh", "-c", script], env=full, **options)


@functools.cache
def short_name(folder: Path) -> Path:
    """Return another name of a folder: a socket's path is bounded, and pytest's folders have long ones."""
    link = _short_names() / str(sum(1 for _ in _short_names().iterdir()))
    link.symlink_to(folder)
    return link


@functools.cache
def _short_names() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="wd"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder)
    return folder


@functools.cache
def _caches() -> Path:
    """Return a folder for what programs keep from one run to the next, shared by all that this process starts."""
    folder = Path(tempfile.mkdtemp(prefix="wd"))
    # vLLM may be writing some of it.
    with suppress(OSError):
        shutil.copytree(Path.home() / ".cache/vllm/modelinfos", folder / "vllm/modelinfos")
    # Tests know a second user.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def unable() -> str | None:
    """Return why root cannot become an unprivileged user here; None where it can."""
    if missing := [tool for tool in ("unshare", "setpriv", "mount") if shutil.which(tool) is None]:
        return f"needs {' and '.join(missing)} to run as an unprivileged user"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"cannot run as an unprivileged user: {tried.stderr.strip()}" if tried.returncode else None


def mounts_for(needed: Iterable[Path]) -> list[str]:
    """Return shell lines that make each folder reachable: an open stand-in over what bars the way, the folder in it."""
    barred: dict[Path, list[Path]] = {}
    for folder in sorted({path.resolve() for path in needed}):
        if bar := first_barred(folder):
            barred.setdefault(bar, []).append(folder)
    lines = []
    for bar, folders in barred.items():
        # Held by number, not by name, while the stand-in hides them.
        lines += [f"exec {number}<{shlex.quote(str(folder))}" for number, folder in enumerate(folders, start=3)]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(bar))}")
        for number, folder in enumerate(folders, start=3):
            lines.append(f"mkdir -p {shlex.quote(str(folder))}")
            lines.append(f"mount --no-canonicalize --rbind /proc/self/fd/{number} {shlex.quote(str(folder))}")
            lines.append(f"exec {number}<&-")
    return lines


def first_barred(folder: Path) -> Path | None:
    """Return the uppermost folder above `folder` that others may not enter."""
    return next((up for up in reversed(folder.parents) if not up.stat().st_mode & stat.S_IXOTH), None)
