"""Whether containers can run a backend on GPUs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.checks.doctor.finding import ok, warn
from wattdock.launch import NoContainersError, find_containers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.checks.doctor.finding import Finding

TOOLKIT = "install the NVIDIA Container Toolkit, then as root: nvidia-ctk runtime configure --runtime=docker"


def container_findings(backend: str, *, gpus: bool) -> Iterable[Finding]:
    """Yield what the engine, the backend's image and NVIDIA's runtime say.

    Args:
        gpus: There are GPUs that a container would have to see.
    """
    try:
        found = find_containers(f"wattdock-{backend}", backend=backend, needs_gpu=gpus)
    except NoContainersError as error:
        yield warn("containers", error.reason, f"{error.remedy}; until then the backend runs as a process")
        return
    yield ok("containers", f"{found.engine.name} {found.engine.version} has image {found.image.name}")
    if gpus:
        yield runtime_finding(found.engine.runtimes)


def runtime_finding(runtimes: tuple[str, ...]) -> Finding:
    """Return whether an engine with these runtimes can show GPUs to containers."""
    if "nvidia" in runtimes:
        return ok("container GPUs", "NVIDIA's runtime is configured")
    return warn("container GPUs", f"runtimes: {', '.join(runtimes)}, not nvidia", TOOLKIT)
