"""What every launcher offers: a runner, started from a spec, watched and stopped through its handle.

Knows no way to start anything: `process` and `docker` do. Whether the runner answers is the client's to find out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from wattdock.host import folders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

SOCKET_NAME = folders.SOCKET_NAME
STOP_GRACE_S = 5.0
# `exit_reason` of a runner that ended because it was asked to.
STOPPED = "stopped"


@dataclass(frozen=True)
class LaunchSpec:
    """One runner to start.

    Attributes:
        backend: Its name; the runner loads the module `wattdock_<backend>`.
        runner_dir: The folder that holds this module.
        log_path: Where everything the runner prints is appended; its folder exists.
        gpu_indices: The GPUs it may see, as integer indices in PCI bus order; empty for none.
        gpu_uuids: The same GPUs, same order, in NVML's form.
        model_path: The model folder on this host; None where the backend needs none.
        labels: What to mark it with, where the launcher can mark; a plain process cannot be marked.
        alive_lock: File whose lock the coordinator holds as long as it lives; `reap` removes what is marked with it
            once nobody does.
        lease_fds: Descriptors of leases that are to be held until nothing of the runner is left, even should the
            coordinator be killed.
    """

    backend: str
    runner_dir: Path
    log_path: Path
    gpu_indices: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    model_path: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    alive_lock: Path | None = None
    lease_fds: tuple[int, ...] = ()


class LaunchedRunner(Protocol):
    """A runner that was started; leaving its `with` block stops it.

    What follows from the rest is written here; launchers' own runners inherit it.

    Attributes:
        address: Where it serves, as gRPC writes it: "unix:/…/r.sock".
    """

    address: str

    @property
    def description(self) -> str:
        """What it is on this host, for people: "process 1234"."""

    def model_path(self, on_host: Path) -> Path:
        """Return where the runner finds the model's folder that lies at `on_host` on this machine."""

    def alive(self) -> bool:
        """Whether it still runs, cheap enough to poll; False only once nothing of it is left."""
        return self.exit_reason() is None

    def pids(self) -> frozenset[int]:
        """Return all processes that belong to it now, as this host numbers them; empty once it has ended."""

    def exit_reason(self) -> str | None:
        """How it ended, such as "exited with code 1"; None while it runs."""

    @property
    def stopped(self) -> bool:
        """Whether it ended because it was asked to."""
        return self.exit_reason() == STOPPED

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of its log."""

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to stop, end it by force after `grace_s` seconds, and return when nothing of it is left."""

    def kill(self) -> None:
        """End it by force, now, and return when nothing of it is left."""
        self.stop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Launcher(Protocol):
    """One way to start runners."""

    @property
    def name(self) -> str:
        """As `environment.launcher` states it: "process" or "docker"."""

    def launch(self, spec: LaunchSpec) -> LaunchedRunner:
        """Start one runner and return at once, before it answers.

        Raises:
            PreflightError: This machine cannot hold it, for instance its socket's path is too long.
            LaunchError: It could not be started.
        """
