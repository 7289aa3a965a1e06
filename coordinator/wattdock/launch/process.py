"""Start a runner as a plain process of this host, which ends with the coordinator.

A keeper (`keeper.py`) stands between the two and ends the runner. Knows nothing of gRPC and of environments.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError
from wattdock.host import folders
from wattdock.launch.environment import Environment
from wattdock.launch.keeper import KEEPER, descendants, end_group
from wattdock.launch.launcher_choice import LauncherChoice
from wattdock.launch.packages import PackageLock
from wattdock.launch.protocol import KILL_WAIT_S, STOP_GRACE_S, LaunchedRunner
from wattdock.launch.runners import process_variables, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.files import NewFolder
    from wattdock.launch.environment import Variant
    from wattdock.launch.protocol import Launcher, LaunchSpec


def choose(config: ExperimentConfig, *, runner_dir: Path, on_gpu: bool, **_: object) -> LauncherChoice:
    """Return the choice of processes, with the lock of their packages where that is asked for.

    Raises:
        PreflightError: The lock cannot be read, or the backend has none.
    """
    packages = None
    if config.container.locked:
        variant: Variant = "cuda" if on_gpu else "cpu"
        packages = PackageLock.read(runner_dir / f"requirements-{variant}.lock")
    auto = "spread over nodes" if config.nodes else "no image is named"
    asked = "asked for" if config.launcher == "process" else auto
    reason = f"packages of {packages.path.name}, sha256 {packages.sha256[:12]}" if packages else asked
    option = "--image NAME" if config.command else "--launcher docker"
    return LauncherChoice("process", reason, f"for containers, {option}", packages=packages)


@contextmanager
def launcher(choice: LauncherChoice, *, on_gpu: bool, say: Callable[[str], None]) -> Iterator[Launcher]:
    """Yield a launcher with the interpreter of `choice`, checked if locked, and not made anew meanwhile."""
    if choice.python or choice.runner_dir is None:
        yield partial(launch, python=choice.python, keep_pythonpath=choice.python is not None)
        return
    with Environment(choice.runner_dir, "cuda" if on_gpu else "cpu", say, choice.packages).in_use() as python:
        yield partial(launch, python=python)


def launch(spec: LaunchSpec, *, python: Path | None, keep_pythonpath: bool = False) -> RunnerProcess:
    """Start a runner and return before it answers.

    Args:
        python: The interpreter that has the backend's packages; None starts commands only.
        keep_pythonpath: Append the caller's PYTHONPATH to the runner's, for an interpreter that the user named.

    Raises:
        PreflightError: Its socket's path would be too long, or the folder for it cannot be made.
        LaunchError: Its log cannot be written, or the interpreter cannot be started.
    """
    folder = folders.make_socket_folder(os.environ)
    if spec.runner_dir is None:
        # A command is started as a shell would start it, but for the GPUs that it sees.
        command, variables = list(spec.command), os.environ | visible_gpus(spec.gpu_indices)
    else:
        assert python is not None
        command = [str(python.absolute()), "-m", "wattdock_runner", "--backend", spec.backend]
        command += ["--socket", str(folder.path / folders.SOCKET_NAME)]
        variables = process_variables(spec.runner_dir, spec.gpu_indices, os.environ, keep_pythonpath=keep_pythonpath)
    return RunnerProcess(start(command, spec, folder, variables | dict(spec.variables)), folder, spec)


def start(
    command: Sequence[str], spec: LaunchSpec, folder: NewFolder, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command below a keeper, which is returned; its output goes to the log of `spec`.

    Args:
        folder: The folder of its socket, and its working folder; removed where nothing was started.
        variables: The whole environment of the command.

    Raises:
        LaunchError: The log cannot be written, or the keeper cannot be started.
    """
    try:
        with spec.log_path.open("ab") as log:
            return subprocess.Popen(
                [*KEEPER, "process", str(STOP_GRACE_S), str(folder.path), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # Python puts the working folder on the module path, so it must not be one where users keep files.
                cwd=spec.folder or folder.path,
                env=variables,
                # A terminal's Ctrl-C is the coordinator's to handle. Not a session of its own: some kernels share
                # the CPUs out by session, and an engine that yields while it waits then starves the coordinator.
                process_group=0,
                # Whatever is left of the folder when both are killed is removed by the next command.
                pass_fds=(*spec.lease_fds, folder.descriptor),
            )
    except OSError as error:
        folder.remove()
        raise LaunchError(f"cannot start a runner with the log {spec.log_path}: {error.strerror}") from error


class RunnerProcess(LaunchedRunner):
    """A runner that was started as a process, watched through its keeper.

    Attributes:
        pid: The runner's process id and process group.
    """

    def __init__(self, keeper: subprocess.Popen[bytes], folder: NewFolder, spec: LaunchSpec) -> None:
        self._keeper, self._folder, self._spec = keeper, folder, spec
        self._exit_reason: str | None = None
        self.address = f"unix:{folder.path / folders.SOCKET_NAME}"
        word, detail = self._read_status()
        if word != "started":
            self._close()
            what = f"the runner could not be started: {detail or 'its keeper ended'}"
            raise LaunchError(what, f"see {spec.log_path}")
        self.pid = int(detail)

    def model_path(self, on_host: Path) -> Path:
        """Return where the runner finds the model's folder: at its path on this host."""
        return on_host

    def pids(self) -> frozenset[int]:
        """Return all processes that belong to it, its keeper included; empty once it has ended."""
        return frozenset((self._keeper.pid, *descendants(self._keeper.pid))) if self.alive() else frozenset()

    def exit_reason(self) -> str | None:
        """How it ended, such as "exited with code 1"; None while it runs."""
        if self._exit_reason is None and self._keeper.poll() is not None:
            word, reason = self._read_status()
            self.lacked_memory = word == "starved"
            if word not in ("ended", "starved"):
                # A keeper that was itself killed: its death killed the runner, but not the runner's group.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end_group(self.pid)
                reason = f"was killed as its keeper ended with code {self._keeper.returncode} (out of memory?)"
            self._exit_reason = reason
            self._close()
        return self._exit_reason

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to stop, kill it after `grace_s` seconds, and return when nothing of it is left.

        Raises:
            LaunchError: It survives SIGKILL.
        """
        if not self.alive():
            return
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(f"{grace_s}\n".encode())
        try:
            self._keeper.wait(grace_s + KILL_WAIT_S)
        except subprocess.TimeoutExpired as error:
            raise LaunchError(
                f"process {self.pid} does not die, even by SIGKILL (waited {KILL_WAIT_S:.0f} s): a driver may hold it",
                "see its state in ps",
            ) from error
        self.exit_reason()

    def _read_status(self) -> tuple[str, str]:
        assert self._keeper.stdout is not None
        word, _, detail = self._keeper.stdout.readline().decode(errors="replace").strip().partition(" ")
        return word, detail

    def _close(self) -> None:
        """Close both pipes, reap the keeper, and see that the socket's folder is gone."""
        self._folder.remove()
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        self._keeper.wait()
