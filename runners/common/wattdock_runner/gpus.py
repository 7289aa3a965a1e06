"""Hold the GPUs that an engine sees, and their memory, against what a load asks for.

Torch is duck-typed: nothing is imported.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner.backend import CudaVersions, Gpu
from wattdock_runner.errors import InvalidRequest, OutOfMemory, WrongState

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


def require_room(weight_bytes: int | None, sizes: Mapping[str, int], gpus: Sequence[Gpu], engine: str) -> None:
    """Accept a split that has a GPU for each part, and weights that each part's GPU can hold.

    Args:
        weight_bytes: Of the whole model; None is unknown, and the engine will tell.
        sizes: Of the split along each of its directions, under the names that a user sets them by.
        gpus: At least one.

    Raises:
        InvalidRequest: More GPUs are needed than there are.
        OutOfMemory: Holds both sizes; in a worker's process this would end as an unnamed failure.
    """
    split = prod(sizes.values())
    if split > len(gpus):
        raise InvalidRequest(f"{' × '.join(sizes)} is {split}, and {engine} sees {len(gpus)} GPUs")
    vram_bytes = [gpu.vram_total_bytes for gpu in gpus if gpu.vram_total_bytes is not None]
    if weight_bytes is not None and vram_bytes and weight_bytes / split > min(vram_bytes):
        raise OutOfMemory(
            f"the weights take {weight_bytes / split / 1e9:.1f} GB on each of {split} GPU(s), "
            f"which have {min(vram_bytes) / 1e9:.1f} GB; split the model further"
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
