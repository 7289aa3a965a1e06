"""A server that runs already: which processes it has on this machine, and on which GPUs. Asks it nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wattdock.errors import Cause, PreflightError, os_errors_as
from wattdock.host import processes
from wattdock.text import listed

if TYPE_CHECKING:
    from wattdock.config import ExperimentConfig
    from wattdock.host import GpuInventory

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class RunningServer:
    """A server that an experiment finds running.

    Attributes:
        roots: Processes of this machine that listen for it, and those on the GPUs that the experiment names where
            nothing else tells the server's; empty where it shows none.
        unmeasured: Why its energy cannot be measured; empty where it is.
    """

    roots: frozenset[int] = frozenset()
    unmeasured: str = ""

    def pids(self) -> frozenset[int]:
        """Return its processes as they are now."""
        return processes.with_descendants(self.roots)


def find_server(config: ExperimentConfig, inventory: GpuInventory) -> tuple[RunningServer, ExperimentConfig]:
    """Return the server of an experiment, and the experiment with the GPUs on which it has processes.

    Raises:
        PreflightError: GPUs or a meter are asked for, and it is not on this machine, or on no GPU; or some of its GPUs
            are left out.
    """
    parts = urlsplit(config.section.server_url)
    port, named = parts.port or PORTS[parts.scheme], config.gpus if isinstance(config.gpus, list) else None
    with os_errors_as(PreflightError, f"{config.section.server_url}: no such host", "correct it"):
        is_here = processes.is_here(parts.hostname or "")
    if not is_here:
        return _speed_only(config, RunningServer(), "the server runs on another host", ("auto", "none"))
    server = RunningServer(processes.listening_pids(port))
    pids = server.pids()
    of_gpu = {uuid: {process.pid for process in used.processes} for uuid, used in inventory.activity.items()}
    on = [uuid for uuid in of_gpu if of_gpu[uuid] & pids]
    if named:
        uuids = [gpu.uuid for gpu in inventory.gpus if gpu.index in named or gpu.uuid in named]
        if missing := [gpu.index for gpu in inventory.gpus if gpu.uuid in {*on} - {*uuids}]:
            raise PreflightError(
                f"gpus: {named} leaves out GPU {', '.join(map(str, missing))}, where the server has processes",
                "leave gpus out, or name all of the server's",
                cause=Cause.INVALID_VALUE,
            )
        return server if on else RunningServer(server.roots.union(*(of_gpu[uuid] for uuid in uuids))), config
    if config.accelerator != "cpu" and on:
        return server, config.model_copy(update={"gpus": on})
    reason = f"no GPU here holds a process of the server (listening: {listed(list(map(str, sorted(server.roots))))})"
    if not pids:
        reason = f"this user sees no process that listens at port {port}; name its GPUs with gpus"
    return _speed_only(config, server, reason, ("auto", "none", "rapl"))


def _speed_only(
    config: ExperimentConfig, server: RunningServer, reason: str, meters: tuple[str, ...]
) -> tuple[RunningServer, ExperimentConfig]:
    """Return the server without GPUs; refuse settings that ask for them, and meters that cannot be had."""
    wanted = {"accelerator": config.accelerator == "cuda", "gpus": config.gpus != "auto"}
    wanted["meter"] = config.meter not in meters
    if asked := next((f"{name}: {getattr(config, name)}" for name in wanted if wanted[name]), None):
        raise PreflightError(
            f"{asked}: energy cannot be measured: {reason}", "leave it out to measure speed only", cause=Cause.NO_GPU
        )
    return replace(server, unmeasured=reason), config.model_copy(update={"accelerator": "cpu", "gpus": "auto"})
