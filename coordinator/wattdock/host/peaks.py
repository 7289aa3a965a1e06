"""What the GPUs of an experiment can do at most together, by the names that NVML gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.host.gpu_models import gpu_models

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Peak:
    """Upper limits of one or several GPUs together.

    Attributes:
        flops_per_s: Dense 16-bit tensor arithmetic.
        memory_bytes_per_s: Reading and writing its own memory.
        source: Where the figures are printed, and where they were read.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    source: str


def why_no_peak(gpu_names: Sequence[str]) -> str | None:
    """Return why nothing can be held against these GPUs' limits, or None."""
    if not gpu_names:
        return "no GPU was used"
    if unknown := [name for name in dict.fromkeys(gpu_names) if name not in gpu_models()]:
        return f"no peak is known for {', '.join(unknown)}"
    if guessed := [name for name in dict.fromkeys(gpu_names) if not gpu_models()[name].read_at]:
        return f"the peak of {', '.join(guessed)} in gpus.yaml is not verified"
    return None


def peak_of(gpu_names: Sequence[str]) -> Peak | None:
    """Return the limits of these GPUs together; None where `why_no_peak` tells why."""
    if why_no_peak(gpu_names):
        return None
    known = [gpu_models()[name] for name in gpu_names]
    return Peak(
        flops_per_s=sum(one.flops_per_s for one in known),
        memory_bytes_per_s=sum(one.memory_bytes_per_s for one in known),
        source="; ".join(dict.fromkeys(f"{one.source}, read at {one.read_at}" for one in known)),
    )
