"""The GPUs that an engine sees, held against those that a load asks for; its split; its versions.

Torch is duck-typed: nothing is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner.backend import CudaVersions, Gpu
from wattdock_runner.errors import WrongState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def nvml_uuid(uuid: object) -> str:
    """Return a UUID in NVML's form; torch writes them without prefix."""
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def torch_gpus(cuda: Any) -> tuple[Gpu, ...]:
    """Return the GPUs that torch sees, in its order, with UUIDs in NVML's form; `cuda` is torch.cuda."""
    if not cuda.is_available():
        return ()
    all_properties = [cuda.get_device_properties(index) for index in range(cuda.device_count())]
    return tuple(Gpu(nvml_uuid(p.uuid), p.name, p.total_memory) for p in all_properties)


def require_gpus(asked: tuple[str, ...], gpus: Sequence[Gpu], engine: str) -> None:
    """Accept only if the GPUs seen are those asked for, in that order.

    Raises:
        WrongState: Names both.
    """
    seen = tuple(gpu.uuid for gpu in gpus)
    if asked != seen:
        raise WrongState(
            f"asked for GPUs [{', '.join(asked)}], but {engine} sees [{', '.join(seen)}]; "
            "CUDA_VISIBLE_DEVICES of the runner decides what it sees"
        )


def parallelism(tensor: int, pipeline: int, layers_by_gpu: Mapping[str, int]) -> dict[str, Any]:
    """Return how a model is split; `devices` holds layers by GPU UUID."""
    split = {kind: size for kind, size in (("tensor", tensor), ("pipeline", pipeline)) if size > 1}
    sizes = {f"{kind}_parallel_size": size for kind, size in split.items()}
    return {"kind": "+".join(split) or "none", **sizes, "devices": dict(layers_by_gpu)}


def cuda_versions(torch: Any, gpus: Sequence[Gpu]) -> CudaVersions:
    """Return the versions of driver, CUDA and NCCL that an engine on torch computes with."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else None
    return CudaVersions(driver_version(), torch.version.cuda, nccl)


def driver_version() -> str | None:
    """Return the NVIDIA kernel driver's version, or None without one.

    Source: first line of /proc/driver/nvidia/version, "NVRM version: NVIDIA UNIX … Kernel Module  580.159  …".
    """
    if not DRIVER_VERSION.is_file():
        return None
    words = DRIVER_VERSION.read_text(encoding="utf-8").splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)
