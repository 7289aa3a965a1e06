"""What a runner's container may use and reach: for every launcher of containers, and in the terms of the docker SDK.

Asks no engine and starts nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.errors import LaunchError
from wattdock.host import folders
from wattdock.launch.runners import container_variables
from wattdock.owned_folder import OwnedFolder
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.config import ContainerSpec, ExperimentConfig
    from wattdock.launch.engine import Image
    from wattdock.launch.protocol import LaunchSpec

# Places inside every container; the draft model is that of speculative decoding.
SOCKET_FOLDER, MODEL_FOLDER, DRAFT_FOLDER, CACHE_FOLDER = "/run/wattdock", "/model", "/draft", "/cache"
# What runners' Dockerfiles name, for launchers that start a command without the image's own.
ENTRYPOINT = ("python3", "-m", "wattdock_runner")
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


class Bind(NamedTuple):
    """A file or folder of the host at a path in a container."""

    source: Path
    target: str
    read_only: bool = True


def own_binds(spec: LaunchSpec, socket_folder: Path, cache: Path) -> list[Bind]:
    """Return what a runner's container, or a command's, can write to of the host."""
    of_command = (Bind(folder, str(folder), read_only=False) for folder in (spec.folder, spec.writable) if folder)
    own = (Bind(socket_folder, SOCKET_FOLDER, read_only=False), Bind(cache, CACHE_FOLDER, read_only=False))
    return [*own, *of_command]


def models_binds(spec: LaunchSpec) -> list[Bind]:
    """Return the binds of a runner's model, and of its draft model.

    Raises:
        LaunchError: As `model_binds`.
    """
    places = ((spec.model_path, MODEL_FOLDER), (spec.draft_path, DRAFT_FOLDER))
    return [bind for folder, target in places if folder for bind in model_binds(folder, target)]


def model_binds(folder: Path, target: str = MODEL_FOLDER) -> list[Bind]:
    """Return the binds of a model's folder at `target`: the folder itself, or each of its files where some are links.

    A download of the Hugging Face hub is a folder of links to files elsewhere, which lead nowhere in a container.

    Raises:
        LaunchError: A stranger's link leads to what is not the stranger's.
    """
    binds = []
    try:
        with OwnedFolder.open(folder) as opened:
            names = [*opened.files()]
            if all(map(opened.is_regular, names)):
                return [Bind(opened.target("."), target)]
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    binds.append(Bind(opened.target(name), f"{target}/{name}"))
    except OSError as error:
        raise LaunchError(f"{error.filename or folder}: {error.strerror}", "see that this user may read it") from error
    return binds


class Contained:
    """What every `LaunchedRunner` in a container does alike."""

    _spec: LaunchSpec

    def model_path(self, on_host: Path) -> Path:
        """Return where the runner finds the model's folder: always in one place, and a draft model's in another."""
        return Path(DRAFT_FOLDER if on_host == self._spec.draft_path else MODEL_FOLDER)


def runner_arguments(spec: LaunchSpec) -> list[str]:
    """Return what the command of a runner's image is called with; a command of the user's own stands for itself."""
    return list(spec.command) or ["--backend", spec.backend, "--socket", f"{SOCKET_FOLDER}/{folders.SOCKET_NAME}"]


def compile_cache(config: ExperimentConfig, image: Image, home: Path) -> Path:
    """Return the folder for what engines of an image compile; `home` is WATTDOCK_HOME."""
    # What a model's own code leaves in a cache must reach no run without that code.
    code = json_text(config.model) if config.model.trust_remote_code else ""
    suffix = f"-code-{hashlib.sha256(code.encode()).hexdigest()[:12]}" if code else ""
    return folders.engine_cache(home) / config.backend / f"{image.id[-12:]}{suffix}"


def create_arguments(
    spec: LaunchSpec,
    image: Image,
    *,
    user: tuple[int, int],
    binds: Sequence[Bind],
    labels: Mapping[str, str],
    limits: ContainerSpec,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the docker SDK's `containers.create` is called with.

    Args:
        user: The coordinator's uid and gid; what the runner writes belongs to them.
        binds: What the container gets of the host.
        environ: The coordinator's environment, of which the container gets engine settings only.
    """
    from docker.types import DeviceRequest, LogConfig, Mount

    # A rootless engine maps its user to root and nobody else.
    uid, gid = (0, 0) if image.engine.rootless else user
    memory_bytes = None if limits.memory_gb is None else int(limits.memory_gb * BYTES_PER_GB)
    gpus = [DeviceRequest(device_ids=list(spec.gpu_uuids), capabilities=[CAPABILITIES])] if spec.gpu_uuids else None
    return {
        # By id, not by name: a name may point to another image an hour later.
        "image": image.id,
        "command": runner_arguments(spec),
        # Python puts the working folder on the module path; this one holds the socket and nothing else.
        "working_dir": str(spec.folder or SOCKET_FOLDER),
        "environment": container_variables(spec.gpu_uuids, environ, cache=CACHE_FOLDER)
        | (dict(spec.variables) if spec.command else {}),
        "labels": labels,
        "user": f"{uid}:{gid}",
        "mounts": [
            Mount(target=each.target, source=str(each.source), type="bind", read_only=each.read_only) for each in binds
        ],
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
