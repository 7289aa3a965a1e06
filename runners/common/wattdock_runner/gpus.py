"""The GPUs that an engine sees, compared with those that a load asks for; how a model is split; versions of CUDA.

Torch is duck-typed: nothing is imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import WrongState
from wattdock_runner.values import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A file that exists where NVIDIA's kernel driver is loaded.
DRIVER = Path("/proc/driver/nvidia/version")
COUNT_TIMEOUT_S = 120.0
CUDA = "CUDA in the runner"


def nvml_uuid(uuid: object) -> str:
    """Return a UUID in NVML's form; torch writes them without prefix."""
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def torch_gpus(cuda: Any) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that torch sees, in torch's order; `cuda` is torch.cuda."""
    count = cuda.device_count() if cuda.is_available() else 0
    return tuple(nvml_uuid(cuda.get_device_properties(index).uuid) for index in range(count))


def require_gpus(requested: tuple[str, ...], visible: tuple[str, ...], engine: str) -> None:
    """Accept only GPUs whose UUIDs are the requested ones, in that order.

    Raises:
        WrongState: Holds the UUIDs requested and those that the engine sees.
    """
    if requested != visible:
        raise WrongState(
            f"asked for GPUs [{', '.join(requested)}], but {engine} sees [{', '.join(visible)}]; "
            "CUDA_VISIBLE_DEVICES of the runner decides what it sees"
        )


def parallelism(tensor: int, pipeline: int, layers_by_gpu: Mapping[str, int]) -> dict[str, Any]:
    """Return how a model is split, as `RunnerEnvironment` in runner.proto wants it."""
    split = {kind: size for kind, size in (("tensor", tensor), ("pipeline", pipeline)) if size > 1}
    sizes = {f"{kind}_parallel_size": size for kind, size in split.items()}
    return {"kind": "+".join(split) or "none", **sizes, "devices": dict(layers_by_gpu)}


def cuda_versions(torch: Any, gpus: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of CUDA and NCCL that an engine on torch computes with, as `LoadedModel` has them."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else None
    return {"cuda_version": torch.version.cuda, "nccl_version": nccl}


def cuda_findings(environ: Mapping[str, str], library: str, probe: str) -> list[Finding]:
    """Return the version of CUDA and the number of GPUs that a library sees; nothing if the runner was given no GPU.

    A child process runs the probe, which may open contexts on GPUs: they end with the child.

    Args:
        library: Its name for the user, such as "torch".
        probe: As `Backend.gpu_probe`.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "" or (visible is None and not DRIVER.exists()):
        return []
    command = [sys.executable, "-c", probe]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COUNT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [
            Finding(CUDA, "fail", f"{library} did not answer within {COUNT_TIMEOUT_S:.0f} s", "see dmesg for the GPUs")
        ]
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"{library} ended with code {done.returncode}"])[-1]
        return [Finding(CUDA, "fail", reason, "install the backend's requirements file")]
    cuda, gpu_count = done.stdout.split()[-2:]
    if gpu_count == "0":
        advice = f"a build of {library} for CPUs, or a driver older than its CUDA: see the requirements file"
        return [Finding(CUDA, "fail", f"{library} for CUDA {cuda} sees no GPU", advice)]
    return [Finding(CUDA, "ok", f"{cuda}, GPUs: {gpu_count}")]
