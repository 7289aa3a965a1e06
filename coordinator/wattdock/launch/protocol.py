"""What every launcher offers: a runner, started from a spec, watched and stopped through its handle.

To add a launcher:

1. Write a file NAME.py beside `process` and `docker`, with a class and three functions. The class inherits from
   `LaunchedRunner` and defines all that has no body here; `launch` starts one, as `Launcher` says. `choose` takes an
   experiment and returns a `LauncherChoice`, or raises NoContainersError where this machine cannot start such runners;
   `launcher` takes that choice and yields `launch` with all but the spec filled in.
2. Add NAME to the setting `launcher` in `config/experiment.py`, where "auto" takes the first that is possible.

Its tests are one more parameter of the fixture in `tests/launch/test_launchers.py`.

Knows no way to start anything. Whether the runner answers is for the client to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

STOP_GRACE_S = 5.0
# The kernel needs this long to tear down a process that holds tens of gigabytes or several GPUs.
KILL_WAIT_S = 30.0
# `exit_reason` of a runner that stopped when it was asked to.
STOPPED = "stopped"


@dataclass(frozen=True)
class LaunchSpec:
    """A runner to start.

    Attributes:
        backend: Its name; the runner loads the module `wattdock_<backend>`.
        runner_dir: The folder that holds this module; None for a command.
        log_path: File to which the runner's output is appended; its folder exists.
        gpu_indices: The GPUs it may see, as integer indices in PCI bus order; empty for none.
        gpu_uuids: The same GPUs, same order, in NVML's form.
        model_path: The model folder on this host; None where the backend needs none.
        draft_path: The folder of a draft model, for speculative decoding.
        alive_lock: Folder that the coordinator holds locked as long as it lives; containers are labelled with its path,
            and `reap` removes those whose folder nobody holds.
        variables: Environment variables that the runner gets besides, as a process; those of a command.
        command: A command of the user's own that is started in the runner's place, with its arguments; empty for a
            runner.
        folder: Where a command runs, at this path in a container, too.
        writable: Another folder that a command may write to, at this path in a container, too.
        lease_fds: Descriptors of leases that must stay open until nothing of the runner is left, even if the
            coordinator is killed.
    """

    backend: str
    runner_dir: Path | None
    log_path: Path
    gpu_indices: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    model_path: Path | None = None
    draft_path: Path | None = None
    alive_lock: Path | None = None
    lease_fds: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: tuple[str, ...] = ()
    folder: Path | None = None
    writable: Path | None = None


class LaunchedRunner(Protocol):
    """A runner that was started; leaving its `with` block stops it.

    Attributes:
        address: Where it serves, as gRPC writes it: "unix:/…/r.sock".
        lacked_memory: Whether it was killed because the host's or its own memory was used up.
        ended_ns: When its process ended, CLOCK_MONOTONIC, before its log was read and it was removed; None while it
            runs, and where that takes no time.
    """

    address: str
    ended_ns: int | None = None
    lacked_memory: bool = False

    def model_path(self, on_host: Path) -> Path:
        """Return where the runner finds the model folder that lies at `on_host` on this machine."""

    def pids(self) -> frozenset[int]:
        """Return all processes that belong to it, as this host numbers them; empty once it has ended."""

    def exit_reason(self) -> str | None:
        """How it ended, such as "exited with code 1"; None while it runs.

        Cheap enough to poll. Not None only once nothing of the runner is left, its socket's folder included, and its
        log is complete.
        """

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to stop, kill it after `grace_s` seconds, and return when nothing of it is left; 0 kills it now."""

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.exit_reason() is None

    @property
    def stopped(self) -> bool:
        """Whether it ended because it was asked to."""
        return self.exit_reason() == STOPPED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# Starts a runner and returns at once, before it answers; the runner ends with the coordinator, even if that is killed.
# Raises PreflightError where this machine cannot hold it, for instance as its socket's path is too long, and
# LaunchError where it could not be started.
Launcher = Callable[[LaunchSpec], LaunchedRunner]
