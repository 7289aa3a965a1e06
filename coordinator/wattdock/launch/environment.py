"""Make a runner's virtual environment on first use, and find it made ever after.

An environment is whole when its stamp says so; the stamp is written last. Two callers never make one at once: whoever
holds the lock makes it. What goes in is `pip`'s matter, which variant is wanted the caller's.
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
from wattdock.launch.pip import Pip, describe_sizes, download_bytes, is_cpu_build, megabytes, run_logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock.launch.pip import Package

    Progress = Callable[[str], None]

Variant = Literal["cpu", "cuda"]

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OWN_INTERPRETER = "or name an interpreter that has the packages with runner_python"
# What is unpacked, and pip's cached copy. Seen with torch 2.13.0+cpu and transformers: 257 MB became 1.2 GB; CUDA
# builds, mostly machine code already packed, grow less.
DISK_PER_DOWNLOAD = 5


def ensure_environment(runner_dir: Path, *, variant: Variant, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of `runner_dir/.venv`, made first from `requirements-<variant>.txt` where it is not there.

    It is made anew when the requirements file, the variant or Python's version changed, and when its making was
    interrupted. While another process makes it, this one waits.

    Args:
        runner_dir: The backend's folder.
        variant: Which requirements file; with "cpu" a CUDA build of torch is never installed.
        progress: Receives one plain line per step.

    Raises:
        PreflightError: No such requirements file, folder not writable, or too little disk space.
        LaunchError: The packages could not be resolved, fetched or installed.
    """
    requirements = runner_dir / f"requirements-{variant}.txt"
    venv = runner_dir / ".venv"
    stamp = expected_stamp(requirements, variant)
    if is_whole(venv, stamp):
        return python_of(venv)
    with creation_lock(runner_dir, progress) as lock_fd:
        if not is_whole(venv, stamp):
            try:
                make(venv, requirements, variant=variant, progress=progress, lock_fd=lock_fd)
                stamp_file(venv).write_text(stamp, encoding="utf-8")
            except OSError as error:
                raise PreflightError(
                    f"cannot write {venv}: {error.strerror or error}; make room, {OWN_INTERPRETER}"
                ) from error
    return python_of(venv)


def expected_stamp(requirements: Path, variant: Variant) -> str:
    """Return what a whole environment's stamp must hold: everything that decides what is in it.

    Raises:
        PreflightError: The requirements file cannot be read.
    """
    try:
        digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    except OSError as error:
        raise PreflightError(
            f"cannot read {requirements}: {error.strerror or error}; add it, {OWN_INTERPRETER}"
        ) from error
    return f"{digest} {variant} python{sys.version_info.major}.{sys.version_info.minor}\n"


def python_of(venv: Path) -> Path:
    """Return where an environment's interpreter lies."""
    return venv / "bin" / "python"


def stamp_file(venv: Path) -> Path:
    """Return where an environment's stamp lies."""
    return venv / "wattdock" / "stamp"


def is_whole(venv: Path, stamp: str) -> bool:
    """Whether the environment was made to its end, from what would be used today, and its Python still exists."""
    try:
        return stamp_file(venv).read_text(encoding="utf-8") == stamp and python_of(venv).exists()
    except OSError:
        return False


@contextmanager
def creation_lock(runner_dir: Path, progress: Progress) -> Iterator[int]:
    """Hold the right to make this folder's environment; waits, and says so, while another process has it."""
    try:
        lock_fd = os.open(runner_dir / ".venv.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PreflightError(
            f"cannot make a virtual environment in {runner_dir}: {error.strerror}; make it writable, {OWN_INTERPRETER}"
        ) from error
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another process is making {runner_dir / '.venv'}: waiting for it")
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
        yield lock_fd
    finally:
        os.close(lock_fd)


def make(venv: Path, requirements: Path, *, variant: Variant, progress: Progress, lock_fd: int) -> None:
    """Make an environment from nothing; whatever stood there before is removed first."""
    began_s = time.monotonic()
    progress(f"making {venv} ({variant}, Python {sys.version_info.major}.{sys.version_info.minor}), once")
    if venv.exists():
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
    check_disk(venv, sum(size or 0 for size in sizes.values()))
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


def check_disk(venv: Path, to_fetch_bytes: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        PreflightError: Holds what is needed and what is free.
    """
    needed_bytes = to_fetch_bytes * DISK_PER_DOWNLOAD
    free_bytes = shutil.disk_usage(venv).free
    if free_bytes < needed_bytes:
        raise PreflightError(
            f"{venv} needs about {megabytes(needed_bytes)} and {megabytes(free_bytes)} are free; "
            f"make room, {OWN_INTERPRETER}"
        )
