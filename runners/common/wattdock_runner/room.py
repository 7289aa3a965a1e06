"""Refuse a model that cannot fit the GPUs there are, before an engine starts. Knows no engine."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from wattdock_runner.errors import InvalidRequest, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_runner.backend import Gpu


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
