"""Make a runner's virtual environment on first use, and find it made ever after.

An environment is whole when its stamp says so; the stamp is written last. One lock guards it: whoever makes it holds it
alone, whoever runs it shares it with others who do. What goes in is `pip`'s matter, which variant the caller's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from wattdock.errors import LaunchError, PreflightError
from wattdock.launch.interpreter import check_python
from wattdock.launch.pip import Pip, describe_sizes, download_bytes, is_cpu_build, megabytes, run_logged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from wattdock.launch.pip import Package

    Progress = Callable[[str], None]

Variant = Literal["cpu", "cuda"]

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OTHER: dict[Variant, Variant] = {"cpu": "cuda", "cuda": "cpu"}
# Why a backend has no requirements for what this run is on, and what to do.
ONE_KIND_ONLY: dict[Variant, str] = {
    "cpu": "runs on NVIDIA GPUs only, and this run is on the CPU: use a machine with a GPU, another backend",
    "cuda": "runs on CPUs only, and this run is on a GPU: use --accelerator cpu, another backend",
}
OWN_INTERPRETER = "or name an interpreter that has the packages with runner_python"
# Bytes unpacked per byte fetched. Seen with torch 2.13.0+cpu and transformers: 257 MB became 1.2 GB; CUDA builds are
# mostly machine code that packs to about half.
UNPACKED_PER_DOWNLOAD: dict[Variant, int] = {"cpu": 5, "cuda": 2}


@contextmanager
def interpreter(runner_dir: Path, *, named: Path | None = None, variant: Variant, progress: Progress) -> Iterator[Path]:
    """Yield the interpreter that runs a backend: the one that the user named, else that of the backend's environment.

    Raises:
        PreflightError, LaunchError: As `environment_in_use`.
    """
    if named:
        yield check_python(named)
        return
    with environment_in_use(runner_dir, variant=variant, progress=progress) as python:
        yield python


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
            # Between the two, another command may have made a different one.
            if is_whole(runner_dir / ".venv", fitting_stamps(runner_dir, variant)):
                yield python
                return


def ensure_environment(runner_dir: Path, *, variant: Variant, progress: Progress) -> Path:
    """Return the interpreter of `runner_dir/.venv`, made first from `requirements-<variant>.txt` where it is not there.

    It is made anew when the requirements or Python's version changed, when it was made for a CPU and is wanted for
    CUDA, and when its making was interrupted. While another process makes it, and before it is made anew while others
    run it, this one waits. Nothing keeps it from being made anew afterwards: to run it, see `environment_in_use`.

    Args:
        runner_dir: The backend's folder.
        variant: Which requirements file; with "cpu" a CUDA build of torch is never installed, but one that is there
            already, made from the same requirements, serves.
        progress: Receives one plain line per step.

    Raises:
        PreflightError: No such requirements file, folder not writable, or too little disk space.
        LaunchError: The packages could not be resolved, fetched or installed.
    """
    venv = runner_dir / ".venv"
    if is_whole(venv, fitting_stamps(runner_dir, variant)):
        return python_of(venv)
    with held_lock(runner_dir, fcntl.LOCK_EX, progress) as lock_fd:
        stamps = fitting_stamps(runner_dir, variant)
        if not is_whole(venv, stamps):
            try:
                make(venv, requirements_file(runner_dir, variant), variant=variant, progress=progress, lock_fd=lock_fd)
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
    lock_fd = open_lock(runner_dir, operation)
    try:
        try:
            fcntl.flock(lock_fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{holder(lock_fd)} {runner_dir / '.venv'}: waiting for it, {OWN_INTERPRETER}")
            fcntl.flock(lock_fd, operation)
        yield lock_fd
    finally:
        os.close(lock_fd)


def open_lock(runner_dir: Path, operation: int) -> int:
    """Open the lock's file, made where it is not there; to run an environment, another user's need only be readable."""
    path, to_make = runner_dir / ".venv.lock", operation == fcntl.LOCK_EX
    try:
        return os.open(path, (os.O_RDWR if to_make else os.O_RDONLY) | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        what = f"make a virtual environment in {runner_dir}" if to_make else f"lock {path}"
        way = "make it writable" if to_make else "make it readable"
        raise PreflightError(f"cannot {what}: {error.strerror}; {way}, {OWN_INTERPRETER}") from error


def holder(lock_fd: int) -> str:
    """Say what another process that holds the lock is doing."""
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another process is making"
    # Two that both held it shared and wanted it alone would wait for each other.
    fcntl.flock(lock_fd, fcntl.LOCK_UN)
    return "another command is measuring with"


def make(venv: Path, requirements: Path, *, variant: Variant, progress: Progress, lock_fd: int) -> None:
    """Make an environment from nothing; whatever stood there before is removed first."""
    began_s = time.monotonic()
    progress(f"making {venv} ({variant}, Python {sys.version_info.major}.{sys.version_info.minor}), once")
    if venv.exists():
        # First, or what is left of an interrupted removal would pass for whole.
        stamp_file(venv).unlink(missing_ok=True)
        shutil.rmtree(venv)
    log_path = venv / "wattdock" / "pip.log"
    log_path.parent.mkdir(parents=True)
    run_logged(
        [sys.executable, "-I", "-m", "venv", str(venv)], log_path=log_path, lock_fd=lock_fd, on_line=lambda _: None
    )
    pip = Pip(python_of(venv), log_path, progress, lock_fd)
    pip.upgrade_itself()
    packages, options = choose_packages(pip, requirements, variant)
    sizes = download_bytes(packages)
    progress(describe_sizes(sizes))
    check_disk(venv, sum(size or 0 for size in sizes.values()), variant)
    pip.install(packages, *options)
    progress(f"{venv} is ready after {time.monotonic() - began_s:.0f} s")


def choose_packages(pip: Pip, requirements: Path, variant: Variant) -> tuple[tuple[Package, ...], tuple[str, ...]]:
    """Return what to install and the options to find it by; for a CPU, from PyTorch's own index if need be."""
    packages = pip.resolve(requirements)
    if variant == "cuda" or is_cpu_build(packages):
        return packages, ()
    pip.progress("the configured index has torch for CUDA only; asking PyTorch's own for the CPU build")
    options = ("--extra-index-url", PYTORCH_CPU_INDEX)
    packages = pip.resolve(requirements, *options)
    if not is_cpu_build(packages):
        raise LaunchError(f"no CPU build of torch is to be had for {requirements}; {OWN_INTERPRETER}")
    return packages, options


def check_disk(venv: Path, to_fetch_bytes: int, variant: Variant) -> None:
    """Refuse to begin what the disk cannot hold: what is fetched, and what it unpacks to.

    Raises:
        PreflightError: Holds what is needed and what is free.
    """
    needed_bytes = to_fetch_bytes * (1 + UNPACKED_PER_DOWNLOAD[variant])
    free_bytes = shutil.disk_usage(venv).free
    if free_bytes < needed_bytes:
        raise PreflightError(
            f"{venv} needs about {megabytes(needed_bytes)} and {megabytes(free_bytes)} are free; "
            f"make room, {OWN_INTERPRETER}"
        )
