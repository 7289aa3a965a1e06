"""Refuse a model that cannot fit the GPUs there are, before vLLM starts. Knows no engine and imports no vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock_runner.errors import InvalidRequest, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_runner.backend import Gpu


def require_room(weight_bytes: int | None, settings: Mapping[str, object], gpus: Sequence[Gpu]) -> None:
    """Accept a split that has a GPU for each part, and weights that each part's GPU can hold.

    Args:
        weight_bytes: Of the whole model; None is unknown, and vLLM will tell.
        settings: Of these, the sizes of the split.
        gpus: At least one.

    Raises:
        InvalidRequest: More GPUs are needed than there are.
        OutOfMemory: Holds both sizes; in a worker's process this would end as an unnamed failure.
    """
    tensor, pipeline = (int(str(settings.get(f"{kind}_parallel_size", 1))) for kind in ("tensor", "pipeline"))
    split = tensor * pipeline
    if split > len(gpus):
        raise InvalidRequest(
            f"tensor_parallel_size × pipeline_parallel_size is {split}, and vLLM sees {len(gpus)} GPUs"
        )
    sizes_bytes = [gpu.vram_total_bytes for gpu in gpus if gpu.vram_total_bytes is not None]
    if weight_bytes is not None and sizes_bytes and weight_bytes / split > min(sizes_bytes):
        raise OutOfMemory(
            f"the weights take {weight_bytes / split / 1e9:.1f} GB on each of {split} GPU(s), "
            f"which have {min(sizes_bytes) / 1e9:.1f} GB; split the model further"
        )
