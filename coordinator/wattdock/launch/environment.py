"""The Python that runs a backend: what the user named, or the backend's own environment, made on first use by uv.

An environment is whole when its stamp says so; the stamp is written last. One lock guards it: whoever makes it holds it
alone, whoever runs it shares it with others who do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wattdock.errors import LaunchError, PreflightError
from wattdock.launch.process import KEEPER
from wattdock.launch.uv import failure, uv_call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    Progress = Callable[[str], None]

Variant = Literal["cpu", "cuda"]

MIN_PYTHON = (3, 10)
CHECK_TIMEOUT_S = 60
# Anything may end with code 0; only a Python that got to the end says this.
FITS = "wattdock: fits"
CHECK = f"""
import sys
if sys.version_info < {MIN_PYTHON}:
    sys.exit("is Python " + sys.version.split()[0] + ", {".".join(map(str, MIN_PYTHON))} or later is needed")
import grpc, google.protobuf
print("{FITS}")
"""
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH, CUDA_PACKAGE = re.compile(r"^torch==(\S+)", re.MULTILINE), re.compile(r"^(nvidia|cuda)-", re.MULTILINE)
# A comment in a requirements file, since no requirement can say it: packages to do without, though others ask for them.
WITHOUT = "# wattdock: without "
# What of uv's output is worth a line for people.
STEPS = re.compile(r"(Resolved|Downloading|Building|Prepared|Installed) ")
OTHER: dict[Variant, Variant] = {"cpu": "cuda", "cuda": "cpu"}
# Why a backend has no requirements for what this run is on, and what to do.
ONE_KIND_ONLY: dict[Variant, str] = {
    "cpu": "runs on NVIDIA GPUs only, and this run is on the CPU: use a machine with a GPU, another backend",
    "cuda": "runs on CPUs only, and this run is on a GPU: use --accelerator cpu, another backend",
}
OWN_INTERPRETER = "or name an interpreter that has the packages with runner_python"


def check_python(python: str | Path) -> Path:
    """Return the absolute path of a named interpreter that can run a runner.

    The interpreter is tried with the caller's PYTHONPATH, which such a runner gets too. Whether the backend's own
    packages are there, the runner itself says.

    Raises:
        PreflightError: It is not there, cannot be executed, is older than 3.10, or lacks grpcio or protobuf.
    """
    found = shutil.which(python)
    if found is None:
        state = "cannot be executed" if Path(python).exists() else "is not there"
        raise PreflightError(f"runner_python: {python} {state}; name a Python interpreter by path, or leave it out")
    path = Path(found).absolute()
    if path == Path(sys.executable):
        # The coordinator's own: of a later Python, and with both packages.
        return path
    try:
        run = subprocess.run(
            [path, "-c", CHECK],
            # With -c, Python would import from the working folder too.
            cwd=os.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreflightError(f"runner_python: {path} does not run: {error}") from error
    if run.returncode != 0:
        reason = (run.stderr.strip().splitlines() or [f"ended with code {run.returncode}"])[-1]
        raise PreflightError(f"runner_python: {path} {reason}")
    if FITS not in run.stdout:
        raise PreflightError(f"runner_python: {path} is not a Python interpreter; name one, or leave it out")
    return path


@contextmanager
def environment_in_use(runner_dir: Path, *, variant: Variant, progress: Progress) -> Iterator[Path]:
    """Yield the environment's interpreter, made first where need be, and let nobody make it anew meanwhile.

    Held by this process alone: whatever it starts inherits nothing. Inside, `ensure_environment` for the same folder
    may wait for ever.

    Raises:
        PreflightError: As `ensure_environment`, or the lock's file cannot be read.
        LaunchError: As `ensure_environment`.
    """
    while True:
        python = ensure_environment(runner_dir, variant=variant, progress=progress)
        with held_lock(runner_dir, fcntl.LOCK_SH, progress):
            # Between the two, another command may have made a different environment.
            if is_whole(runner_dir / ".venv", fitting_stamps(runner_dir, variant)):
                yield python
                return


def ensure_environment(runner_dir: Path, *, variant: Variant, progress: Progress) -> Path:
    """Return the interpreter of `runner_dir/.venv`, made first from `requirements-<variant>.txt` where it is not there.

    It is made anew when the requirements or Python's version changed, when it was made for a CPU and is wanted for
    CUDA, and when its making was interrupted. While another process makes it, and before it is made anew while others
    run it, this call waits. Nothing keeps it from being made anew afterwards: to run it, see `environment_in_use`.

    Args:
        runner_dir: The backend's folder.
        variant: Which requirements file; with "cpu" a CUDA build of torch is never installed, but one that is there
            already, made from the same requirements, serves.
        progress: Receives one plain line per step.

    Raises:
        PreflightError: No such requirements file, or folder not writable.
        LaunchError: The packages could not be resolved, fetched or installed.
    """
    venv = runner_dir / ".venv"
    if is_whole(venv, fitting_stamps(runner_dir, variant)):
        return python_of(venv)
    with held_lock(runner_dir, fcntl.LOCK_EX, progress) as lock_fd:
        stamps = fitting_stamps(runner_dir, variant)
        if not is_whole(venv, stamps):
            try:
                _make(venv, requirements_file(runner_dir, variant), variant=variant, progress=progress, lock_fd=lock_fd)
                stamp_file(venv).write_text(stamps[0], encoding="utf-8")
            except OSError as error:
                raise PreflightError(
                    f"cannot write {venv}: {error.strerror or error}; make room, {OWN_INTERPRETER}"
                ) from error
    return python_of(venv)


def requirements_file(runner_dir: Path, variant: Variant) -> Path:
    """Return where a backend's requirements lie."""
    return runner_dir / f"requirements-{variant}.txt"


def fitting_stamps(runner_dir: Path, variant: Variant) -> tuple[str, ...]:
    """Return what a whole environment's stamp may hold, all that decides what is in it; what is made comes first.

    A CUDA build computes on a CPU just as well, so where the requirements are the same it fits both variants.

    Raises:
        PreflightError: The requirements file cannot be read.
    """
    requirements = requirements_file(runner_dir, variant)
    try:
        digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    except OSError as error:
        if not requirements.exists() and requirements_file(runner_dir, OTHER[variant]).exists():
            raise PreflightError(f"{runner_dir.name} {ONE_KIND_ONLY[variant]}, {OWN_INTERPRETER}") from error
        raise PreflightError(
            f"cannot read {requirements}: {error.strerror or error}; add it, {OWN_INTERPRETER}"
        ) from error
    fitting = ("cpu", "cuda") if variant == "cpu" else ("cuda",)
    return tuple(f"{digest} {each} python{sys.version_info.major}.{sys.version_info.minor}\n" for each in fitting)


def python_of(venv: Path) -> Path:
    """Return where an environment's interpreter lies."""
    return venv / "bin" / "python"


def stamp_file(venv: Path) -> Path:
    """Return where an environment's stamp lies."""
    return venv / "wattdock" / "stamp"


def is_whole(venv: Path, stamps: Collection[str]) -> bool:
    """Whether the environment was made to its end, from what would be used today, and its Python still exists."""
    try:
        return stamp_file(venv).read_text(encoding="utf-8") in stamps and python_of(venv).exists()
    except OSError:
        return False


@contextmanager
def held_lock(runner_dir: Path, operation: int, progress: Progress) -> Iterator[int]:
    """Hold this folder's lock, LOCK_EX to make its environment or LOCK_SH to run it; waits, and says so, if it must."""
    lock_fd = _open_lock(runner_dir, operation)
    try:
        try:
            fcntl.flock(lock_fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{_holder(lock_fd)} {runner_dir / '.venv'}: waiting for it, {OWN_INTERPRETER}")
            fcntl.flock(lock_fd, operation)
        yield lock_fd
    finally:
        os.close(lock_fd)


def _open_lock(runner_dir: Path, operation: int) -> int:
    """Open the lock's file, made where it is not there; to run an environment, another user's need only be readable."""
    path, to_make = runner_dir / ".venv.lock", operation == fcntl.LOCK_EX
    try:
        return os.open(path, (os.O_RDWR if to_make else os.O_RDONLY) | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        what = f"make a virtual environment in {runner_dir}" if to_make else f"lock {path}"
        way = "make it writable" if to_make else "make it readable"
        raise PreflightError(f"cannot {what}: {error.strerror}; {way}, {OWN_INTERPRETER}") from error


def _holder(lock_fd: int) -> str:
    """Say what another process that holds the lock is doing."""
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another process is making"
    # Two that both held it shared and wanted it alone would wait for each other.
    fcntl.flock(lock_fd, fcntl.LOCK_UN)
    return "another command is measuring with"


def _make(venv: Path, requirements: Path, *, variant: Variant, progress: Progress, lock_fd: int) -> None:
    """Make an environment from nothing; whatever stood there before is removed first."""
    began_s = time.monotonic()
    progress(f"making {venv} ({variant}, Python {sys.version_info.major}.{sys.version_info.minor}), once")
    if venv.exists():
        # First, or what is left of an interrupted removal would pass for whole.
        stamp_file(venv).unlink(missing_ok=True)
        shutil.rmtree(venv)
    uv = Uv(venv / "wattdock", progress, lock_fd)
    uv.notes.mkdir(parents=True)
    uv.run("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(venv))
    pins, options = uv.resolve(requirements, python_of(venv), variant)
    uv.run("pip", "install", "--python", str(python_of(venv)), "--no-deps", "-r", str(pins), *options)
    progress(f"{venv} is ready after {time.monotonic() - began_s:.0f} s")


@dataclass(frozen=True)
class Uv:
    """Runs uv for one environment, and shows its steps.

    Attributes:
        notes: Folder for all that uv says (`uv.log`) and what it chose (`pins.txt`).
        progress: Receives one plain line per step.
        lock_fd: Held open until nothing of uv is left, also when this process was killed.
    """

    notes: Path
    progress: Progress
    lock_fd: int

    def resolve(self, requirements: Path, python: Path, variant: Variant) -> tuple[Path, tuple[str, ...]]:
        """Return a file of exact versions for a requirements file, and the options to find them by.

        For a CPU, torch comes from PyTorch's own index where the configured ones have no build for CPUs.

        Raises:
            LaunchError: No set of versions fits, no index answers, or there is no CPU build of torch.
        """
        pins = self._resolve(requirements, python)
        if variant == "cuda" or _is_for_cpu(pins):
            return pins, ()
        self.progress("the configured index has torch for CUDA only; asking PyTorch's own for the CPU build")
        options = ("--index", PYTORCH_CPU_INDEX)
        pins = self._resolve(requirements, python, *options)
        if not _is_for_cpu(pins):
            raise LaunchError(f"no CPU build of torch is to be had for {requirements}; {OWN_INTERPRETER}")
        return pins, options

    def _resolve(self, requirements: Path, python: Path, *options: str) -> Path:
        excludes, pins = self.notes / "excludes.txt", self.notes / "pins.txt"
        lines = (line.partition(WITHOUT) for line in requirements.read_text(encoding="utf-8").splitlines())
        left_out = [name for before, _, names in lines if not before for name in names.split()]
        excludes.write_text("\n".join(left_out), encoding="utf-8")
        # Versions that an earlier call chose would be preferred.
        pins.unlink(missing_ok=True)
        words = ("--quiet", "--no-header", "--no-annotate", "--python", str(python), "--output-file", str(pins))
        self.run("pip", "compile", str(requirements), "--excludes", str(excludes), *words, *options)
        return pins

    def run(self, *words: str) -> None:
        """Run uv to its end, its output into the log and its steps to `progress`.

        uv runs below a keeper, so that neither it nor anything it started outlives this process or this call; its
        temporary files go with it.

        Raises:
            LaunchError: It failed; holds what it said last and the log's path.
        """
        command, environ = uv_call(words, os.environ)
        temporary = self.notes / "tmp"
        temporary.mkdir(exist_ok=True)
        recent: deque[str] = deque(maxlen=200)
        log_path = self.notes / "uv.log"
        with (
            log_path.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                [*KEEPER, "process", "0", str(temporary), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environ | {"TMPDIR": str(temporary)},
                # A terminal's Ctrl-C is the caller's to handle.
                start_new_session=True,
                pass_fds=(self.lock_fd,),
            ) as keeper,
        ):
            assert keeper.stdout is not None
            assert keeper.stderr is not None
            for line in keeper.stderr:
                log.write(line)
                recent.append(line)
                if STEPS.match(line):
                    self.progress(line.strip())
            ending = keeper.stdout.read().rpartition("\n")[0].rpartition("\n")[2]
        if ending != "ended exited with code 0":
            how = "" if ending.startswith("ended exited") else f"{ending}; "
            raise LaunchError(f"{failure(recent)} ({how}all of it: {log_path})")


def _is_for_cpu(pins: Path) -> bool:
    """Whether these versions run torch without CUDA: no torch, a `+cpu` build, or one that asks for no CUDA package."""
    text = pins.read_text(encoding="utf-8")
    torch = TORCH.search(text)
    return torch is None or torch[1].endswith("+cpu") or not CUDA_PACKAGE.search(text)
