"""What a runner's container may use and reach, in the terms of the docker SDK.

Pure: asks no engine and reads no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.host import folders
from wattdock.launch.runners import container_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from docker.types import Mount

    from wattdock.config import ContainerSpec
    from wattdock.launch.engine import Image
    from wattdock.launch.protocol import LaunchSpec

# Places inside every container.
SOCKET_FOLDER, MODEL_FOLDER, CACHE_FOLDER = "/run/wattdock", "/model", "/cache"
CAPABILITIES = ["gpu", "compute", "utility"]
BYTES_PER_GB = 1_000_000_000
LOG_SIZE = "20m"
# Keep a container from everything that is not mounted into it.
ISOLATION: dict[str, Any] = {
    "network_mode": "none",
    # With no network, the container's own name would not resolve, which breaks gloo and MPI; this one does.
    "hostname": "localhost",
    "ipc_mode": "private",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "read_only": True,
}


def create_arguments(
    spec: LaunchSpec,
    image: Image,
    *,
    user: tuple[int, int],
    mounts: Sequence[Mount],
    labels: Mapping[str, str],
    limits: ContainerSpec,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the docker SDK's `containers.create` is called with.

    Args:
        user: The coordinator's uid and gid; what the runner writes belongs to them.
        mounts: What the container gets of the host; see `bind`.
        environ: The coordinator's environment, of which the container gets engine settings only.
    """
    from docker.types import DeviceRequest, LogConfig

    # A rootless engine maps its user to root and nobody else.
    uid, gid = (0, 0) if image.engine.rootless else user
    memory_bytes = None if limits.memory_gb is None else int(limits.memory_gb * BYTES_PER_GB)
    gpus = [DeviceRequest(device_ids=list(spec.gpu_uuids), capabilities=[CAPABILITIES])] if spec.gpu_uuids else None
    return {
        # By id, not by name: a name may point to another image an hour later.
        "image": image.id,
        "command": ["--backend", spec.backend, "--socket", f"{SOCKET_FOLDER}/{folders.SOCKET_NAME}"],
        # Python puts the working folder on the module path; this one holds the socket and nothing else.
        "working_dir": SOCKET_FOLDER,
        "environment": container_variables(spec.gpu_uuids, environ, cache=CACHE_FOLDER),
        "labels": labels,
        "user": f"{uid}:{gid}",
        "mounts": mounts,
        "device_requests": gpus,
        # Compiled kernels are loaded from /tmp, so it allows exec.
        "tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={int(limits.tmp_gb * BYTES_PER_GB)}"},
        "shm_size": int(limits.shm_gb * BYTES_PER_GB),
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "pids_limit": limits.pids,
        "nano_cpus": None if limits.cpus is None else int(limits.cpus * 1e9),
        # Whatever the engine's default, the log must be readable afterwards and must not fill the disk.
        "log_config": LogConfig(type="json-file", config={"max-size": LOG_SIZE, "max-file": "2"}),
        **ISOLATION,
    }


def bind(source: Path, target: str, *, read_only: bool = True) -> Mount:
    """Return the mount of a file or folder of the host at a path in the container."""
    from docker.types import Mount

    return Mount(target=target, source=str(source), type="bind", read_only=read_only)
