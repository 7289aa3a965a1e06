"""Whether containers can run a backend on GPUs here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wattdock.doctor.finding import ok, warn
from wattdock.launch.docker_probe import DEFAULT_ENGINE, docker_reason, socket_reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.doctor.finding import Finding

TOOLKIT = "install the NVIDIA Container Toolkit, then as root: nvidia-ctk runtime configure --runtime=docker"


def container_findings(backend: str, *, gpus: bool) -> Iterable[Finding]:
    """Yield what the engine, the backend's image and NVIDIA's runtime say.

    Args:
        gpus: There are GPUs that a container would have to see.
    """
    image = f"wattdock-{backend}"
    if reason := docker_reason(image):
        yield warn("containers", reason, "wattdock runs the backend as a process instead; publication wants its image")
    else:
        yield ok("containers", f"the engine answers and has {image}")
    if gpus and (runtimes := _runtimes()) is not None:
        yield runtime_finding(runtimes)


def runtime_finding(runtimes: tuple[str, ...]) -> Finding:
    """Return whether an engine with these runtimes can show GPUs to containers."""
    if "nvidia" in runtimes:
        return ok("container GPUs", "NVIDIA's runtime is configured")
    return warn("container GPUs", f"runtimes: {', '.join(runtimes)}, not nvidia", TOOLKIT)


def _runtimes() -> tuple[str, ...] | None:
    """The engine's runtimes; None where no engine answers, which is told already."""
    if socket_reason(os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE):
        return None
    import docker
    import docker.errors

    try:
        client = docker.from_env(timeout=3)
        try:
            return tuple(sorted(client.info()["Runtimes"]))
        finally:
            client.close()
    except (docker.errors.DockerException, OSError):
        return None
