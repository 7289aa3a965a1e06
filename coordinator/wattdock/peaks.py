"""What a GPU can do at most, by the name that NVML gives it; figures live in data/gpus.yaml with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

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


@cache
def _peaks() -> dict[str, dict[str, Any]]:
    peaks: dict[str, dict[str, Any]] = yaml.safe_load((files("wattdock") / "data/gpus.yaml").read_text("utf-8"))
    return peaks


def why_no_peak(gpu_names: Sequence[str]) -> str | None:
    """Return why nothing can be held against these GPUs' limits, or None."""
    if not gpu_names:
        return "no GPU was used"
    if unknown := [name for name in dict.fromkeys(gpu_names) if name not in _peaks()]:
        return f"no peak is known for {', '.join(unknown)}"
    if guessed := [name for name in dict.fromkeys(gpu_names) if not _peaks()[name]["read_at"]]:
        return f"the peak of {', '.join(guessed)} in gpus.yaml is not verified"
    return None


def peak_of(gpu_names: Sequence[str]) -> Peak | None:
    """Return the limits of these GPUs together; None where `why_no_peak` tells why."""
    if why_no_peak(gpu_names):
        return None
    known = [_peaks()[name] for name in gpu_names]
    return Peak(
        flops_per_s=sum(one["flops_per_s"] for one in known),
        memory_bytes_per_s=sum(one["memory_bytes_per_s"] for one in known),
        source="; ".join(dict.fromkeys(f"{one['source']}, read at {one['read_at']}" for one in known)),
    )
