"""The environment of a backend: its own, which uv makes."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wattdock.errors import LaunchError, PreflightError, os_errors_as
from wattdock.files import locked
from wattdock.host import Machine, processes
from wattdock.launch.keeper import KEEPER
from wattdock.launch.packages import note_installed
from wattdock.launch.runners import PYTHON_HERE, environment_dir
from wattdock.launch.uv import PYTORCH_CPU_INDEX, run_uv
from wattdock.opening import read_regular
from wattdock.secrets import withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock.launch.packages import PackageLock

Variant = Literal["cpu", "cuda"]

# What uv says where no index has a CPU build of torch.
NO_TORCH = re.compile(r"no version of torch==|torch==\S+ has no ")
# What the stamp of an environment says that was made without a lock.
UNLOCKED = "unlocked"
# Lines of uv's output that are shown to the user.
STEPS = re.compile(r"(Resolved|Downloading|Building|Prepared|Installed) ")
HARDWARE: dict[Variant, str] = {"cpu": "a CPU", "cuda": "NVIDIA GPUs"}
# On as many CPUs, uv compiles the byte code of all packages, which a first import would do on one, within the first
# load: vLLM's took 90 s on an H200's machine with 16, then 23 s with the installation and 7 s more; on two, the sum was
# 2.3 times as long.
COMPILING_CPUS = 8
# How long to wait for another command that makes the environment or, before it is made anew, measures with it.
WAIT_S = 3600
# Why a lock cannot be opened where the environment is another user's.
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
OWN_INTERPRETER = "or, without --locked, name an interpreter that has the packages with runner_python"


@dataclass(frozen=True)
class Environment:
    """The virtual environment `.venv` of a backend, made on first use from its `requirements-<variant>.lock`.

    A backend without a lock gets what the package index chooses for its `requirements-<variant>.txt`; a line says so.

    It is complete when its stamp says so, which is written last. A lock guards it: a process that makes it holds the
    lock alone, processes that run it share the lock.

    Attributes:
        runner_dir: The backend's folder.
        variant: Which requirements file. For "cpu", an environment made for CUDA from the same requirements serves.
        progress: Receives one plain line per step.
        packages: What the lock says, against which the packages are held before each use; None checks nothing.
    """

    runner_dir: Path
    variant: Variant
    progress: Callable[[str], None]
    packages: PackageLock | None = None

    @property
    def lock(self) -> Path:
        """The lock that a new environment is made from, which may be absent."""
        return self.requirements(self.variant, ".lock")

    @property
    def venv(self) -> Path:
        """The folder of the environment."""
        return environment_dir(self.runner_dir) / ".venv"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.venv / "bin" / "python"

    @property
    def stamp_file(self) -> Path:
        """The file that says what a complete environment was made from."""
        return self.venv / "wattdock" / "stamp"

    def requirements(self, variant: Variant, suffix: str = ".txt") -> Path:
        """Return the file of a variant's requirements; with ".lock" that of all its packages, which may be absent."""
        return self.runner_dir / f"requirements-{variant}{suffix}"

    def stamps(self) -> tuple[str, ...]:
        """Return the stamps of environments that serve; a new one gets the first.

        A CUDA build computes on a CPU just as well, so one from the same requirements serves both variants.

        Raises:
            PreflightError: The requirements file cannot be read.
        """
        requirements = self.requirements(self.variant)
        what = f"{self.runner_dir.name} does not run on {HARDWARE[self.variant]}: {requirements}"
        remedy = f"use other hardware (--accelerator) or another backend, {OWN_INTERPRETER}"
        with os_errors_as(PreflightError, what, remedy):
            digest = _digest(requirements)
        variants: tuple[Variant, ...] = (self.variant,)
        if self.variant == "cpu" and not self.packages:
            variants = ("cpu", "cuda")
        locks = {variant: self.requirements(variant, ".lock") for variant in variants}
        found = {variant: f"lock {_digest(lock)}" if lock.exists() else UNLOCKED for variant, lock in locks.items()}
        return tuple(f"{digest} {variant} python{PYTHON_HERE} {lock}\n" for variant, lock in found.items())

    def is_complete(self) -> bool:
        """Whether the environment was made to its end, from today's requirements, and its Python still exists.

        Raises:
            PreflightError: The requirements file cannot be read.
        """
        stamps = [stamp.encode() for stamp in self.stamps()]
        try:
            return read_regular(self.stamp_file, owned=True) in stamps and self.python.exists()
        except OSError:
            return False

    @contextmanager
    def in_use(self) -> Iterator[Path]:
        """Yield the interpreter, made first if necessary; nobody makes the environment anew inside the block.

        The lock is this process's: children do not inherit it. Inside the block, `ensure` would wait in vain.

        Raises:
            PreflightError: As `ensure`.
            LaunchError: As `ensure`, or its packages are not those of `packages`.
        """
        while True:
            self.ensure()
            with self._lock(shared=True):
                # Between the two, another process may have made a different environment.
                if self.is_complete():
                    if self.packages:
                        self.packages.check(self.python)
                    yield self.python
                    return

    def ensure(self) -> Path:
        """Make the environment if it is not complete, and return its interpreter.

        Waits while another process makes it and, before it is made anew, while others run it.

        Raises:
            PreflightError: No such requirements file, the folder is not writable, or others have it for too long.
            LaunchError: The packages could not be resolved, fetched or installed.
        """
        if self.is_complete():
            return self.python
        with self._lock(shared=False) as lock_fd:
            if not self.is_complete():
                with os_errors_as(PreflightError, f"cannot write {self.venv}", f"make room, {OWN_INTERPRETER}"):
                    self._make(lock_fd)
        return self.python

    def _make(self, lock_fd: int) -> None:
        """Make the environment from nothing."""
        began_s = time.monotonic()
        stamp = self.stamps()[0]
        self.progress(f"making {self.venv} ({self.variant}, Python {PYTHON_HERE}), once")
        if self.venv.exists():
            # First, or an interrupted removal would leave what looks complete.
            self.stamp_file.unlink(missing_ok=True)
            shutil.rmtree(self.venv)
        uv = Uv(self.stamp_file.parent, self.progress, lock_fd)
        uv.notes.mkdir(parents=True)
        uv.run("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(self.venv))
        install = ("pip", "install", "--python", str(self.python), "-r")
        if stamp.split()[-1] == UNLOCKED:
            self.progress(f"{self.lock} is not there: versions and packages are the index's choice")
            uv.run(*install, str(self.requirements(self.variant)))
        else:
            uv.install_locked(*install, str(self.lock))
            note_installed(self.venv)
        self.stamp_file.write_text(stamp, encoding="utf-8")
        self.progress(f"{self.venv} is ready after {time.monotonic() - began_s:.0f} s")

    @contextmanager
    def _lock(self, *, shared: bool) -> Iterator[int]:
        """Hold the lock and yield its descriptor: alone to make the environment, shared to run it.

        Another user's cannot be locked: its owner does not wait for others who run it. The descriptor is -1 then.
        """
        lock_fd, path = -1, self.venv.with_name(".venv.lock")
        with ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock_fd = stack.enter_context(locked(path, wait_s=WAIT_S, say=self.progress, shared=shared))
            except OSError as error:
                if not shared or error.errno not in NOT_OURS:
                    what = f"{'use the' if shared else 'make a'} virtual environment in {path.parent}"
                    remedy = "wait for it" if isinstance(error, BlockingIOError) else "make it writable"
                    raise PreflightError(
                        f"cannot {what}: {path.name}: {error.strerror}", f"{remedy}, {OWN_INTERPRETER}"
                    ) from error
            yield lock_fd


@dataclass(frozen=True)
class Uv:
    """Runs uv for an environment, and shows its steps.

    Attributes:
        notes: Folder for uv's output (`uv.log`).
        progress: Receives one plain line per step.
        lock_fd: Stays open until nothing of uv is left, even if this process is killed.
    """

    notes: Path
    progress: Callable[[str], None]
    lock_fd: int

    def install_locked(self, *install: str) -> None:
        """Install what a lock names and nothing else, from wheels that have its hashes, wherever they come from.

        Torch comes from PyTorch's own index where the configured ones have no build for CPUs.

        Raises:
            LaunchError: No index answers, or lacks a package, or has another one under its name.
        """
        # A package that is built would bring others, whose hashes nobody knows.
        words = (*install, "--require-hashes", "--no-deps", "--only-binary", ":all:")
        try:
            self.run(*words)
        except LaunchError as error:
            if not NO_TORCH.search(str(error)):
                raise
            self.progress("the configured index has no CPU build of torch; asking PyTorch's own too")
            self.run(*words, "--index", PYTORCH_CPU_INDEX)

    def run(self, *words: str) -> None:
        """Run uv to its end; its output goes to the log, its steps to `progress`.

        Raises:
            LaunchError: It failed; holds its last words and the log's path.
        """
        environ = processes.child_environment(os.environ, processes.PACKAGES)
        if Machine.usable_cpus() >= COMPILING_CPUS:
            environ.setdefault("UV_COMPILE_BYTECODE", "1")
        if error := run_uv(words, self._call, self.progress, environ=environ):
            raise LaunchError(f"{error} (all of it: {self.notes / 'uv.log'})")

    def _call(self, command: list[str], environ: dict[str, str]) -> list[str] | None:
        """Run a command line below a keeper; return its last lines if it fails.

        Neither it nor anything it starts outlives this process or this call, nor do its temporary files.
        """
        temporary = self.notes / "tmp"
        temporary.mkdir(exist_ok=True)
        recent: deque[str] = deque(maxlen=200)
        with (
            (self.notes / "uv.log").open("a", encoding="utf-8") as log,
            subprocess.Popen(
                [*KEEPER, "process", "0", str(temporary), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                cwd=os.sep,
                env=environ | {"TMPDIR": str(temporary)},
                # A terminal's Ctrl-C is the caller's to handle.
                start_new_session=True,
                pass_fds=(self.lock_fd,),
            ) as keeper,
        ):
            assert keeper.stdout is not None
            assert keeper.stderr is not None
            for line in keeper.stderr:
                log.write(withheld(line))
                recent.append(line)
                if STEPS.match(line):
                    self.progress(line.strip())
            ending = keeper.stdout.read().rpartition("\n")[0].rpartition("\n")[2]
        if ending == "ended exited with code 0":
            return None
        return [*recent, "" if ending.startswith("ended exited") else f"error: uv {ending}"]


def _digest(file: Path) -> str:
    return hashlib.sha256(read_regular(file, follow=True)).hexdigest()
