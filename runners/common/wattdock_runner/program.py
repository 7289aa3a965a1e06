"""Run a Python program that a model wrote: apart from runner and host, and ended with all that it started.

`run_program` starts this module as a guard (`python -m wattdock_runner.program`), which starts the program. Where the
kernel lets it, the program has processes, a network and IPC of its own. Must not know: gRPC, backends.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from wattdock_runner.errors import InvalidRequest, WrongState
from wattdock_runner.process import Processes, descendants, die_with_parent

GUARD = ("-m", "wattdock_runner.program")
LONGEST_S = 600.0
# What a program may take: memory, each file, and how many processes and threads more than the machine has. The memory
# is too little for a context of CUDA, which reserves far more addresses.
MEMORY_BYTES, FILE_BYTES, MORE_TASKS = 2 << 30, 16 << 20, 64
# CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID and CLONE_NEWNET. Source: linux/sched.h, linux/prctl.h, linux/mount.h.
NAMESPACES, CLONE_NEWUSER = 0x20000 | 1 << 27 | 1 << 29 | 1 << 30, 1 << 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, MS_BIND, PRIVATE_TREE = 36, 38, 4096, (1 << 14) | (1 << 18)
NOBODY = 65534


def run_program(source: str, timeout_s: float) -> int:
    """Run a program to its end, or for `timeout_s`; return its exit code, or the number of its signal, negative.

    Raises:
        InvalidRequest: The time is none, or longer than ten minutes.
        WrongState: The user that root gives a program cannot run Python.
    """
    if not 0 < timeout_s <= LONGEST_S:
        raise InvalidRequest(f"timeout_s is {timeout_s:g}; give a program more than 0 and at most {LONGEST_S:g} s")
    with TemporaryDirectory(prefix="wattdock-program-", ignore_cleanup_errors=True) as folder:
        Path(folder, "program.py").write_text(source, encoding="utf-8")
        guard = subprocess.run(
            [sys.executable, *GUARD, folder, str(timeout_s)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            check=False,
        )
        # A program in the runner's own namespaces can kill its guard.
        exit_code, refused = json.loads(guard.stdout or f"[-{signal.SIGKILL:d}, null]")
        if refused:
            raise WrongState(f"user nobody cannot run a program: {refused}; run wattdock as an ordinary user")
        return int(exit_code)


def main(folder: str, timeout_s: str) -> None:
    """Hold a program in a child, the first process of a namespace where the kernel gives one: all there end with it."""
    die_with_parent()
    python = _set_apart(folder)
    if child := os.fork():
        os.waitpid(child, 0)
        return
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        end: tuple[int, str | None] = (_run(python, Path(folder), float(timeout_s)), None)
    except (OSError, subprocess.SubprocessError) as error:
        end = (0, str(error))
    os.write(1, json.dumps(end).encode())


def _set_apart(folder: str) -> str:
    """Leave the host's processes, network and IPC where the kernel lets this process; return the program's Python."""
    kernel, uid, gid = ctypes.CDLL(None), os.getuid(), os.getgid()
    if kernel.unshare(NAMESPACES) == 0:
        # Another user than root may not reach root's Python by its path.
        Path(place := f"{folder}/python").mkdir()
        kernel.mount(b"none", b"/", None, PRIVATE_TREE, None)
        kernel.mount(os.fsencode(sys.base_prefix), os.fsencode(place), None, MS_BIND, None)
        return place + os.path.realpath(sys.executable).removeprefix(os.path.realpath(sys.base_prefix))
    if kernel.unshare(NAMESPACES | CLONE_NEWUSER) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    return sys.executable


def _run(python: str, folder: Path, timeout_s: float) -> int:
    """Run the program, end all that it left, and return its exit code, that of SIGKILL when its time was over."""
    folder.chmod(0o711)
    (folder / "work").mkdir()
    with suppress(PermissionError):
        os.chown(folder / "work", *((NOBODY, NOBODY) if os.geteuid() == 0 else (-1, -1)))
    tasks = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])

    def confine() -> None:
        limits = (MEMORY_BYTES, FILE_BYTES, 0, math.ceil(timeout_s), tasks + MORE_TASKS)
        for name, most in zip(("AS", "FSIZE", "CORE", "CPU", "NPROC"), limits, strict=True):
            # A limit that is lower already stays.
            with suppress(ValueError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
        if os.geteuid() == 0:
            # In a container root may not become another user; it has no rights there.
            with suppress(PermissionError):
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
        # No program of another user's, such as sudo, gives it rights.
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        die_with_parent()

    program = subprocess.Popen(
        [python, "-I", folder / "program.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder / "work",
        env={"CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": f"{folder}/python/lib"},
        start_new_session=True,
        preexec_fn=confine,  # noqa: PLW1509 - the guard has one thread
    )
    with suppress(subprocess.TimeoutExpired):
        program.wait(timeout_s)
    exit_code = program.returncode
    # The first process of a namespace takes all others there along.
    if os.getpid() != 1:
        _end_descendants()
    return -signal.SIGKILL if exit_code is None else exit_code


def _end_descendants() -> None:
    """End everything below this process, to which orphans come; what is stopped first starts nothing meanwhile."""
    seen = set[int]()
    while new := {*descendants(os.getpid())} - seen:
        seen |= new
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
    Processes(seen).end()
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
