"""GPU models that are known by name, and their peak rates; `gpus.yaml` holds the figures with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml

from wattdock.errors import ConfigError
from wattdock.text import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20


@dataclass(frozen=True)
class GpuModel:
    """The published figures of a GPU model.

    Attributes:
        name: As NVML gives it.
        flops_per_s: Dense 16-bit tensor arithmetic.
        memory_bytes_per_s: Reading and writing its own memory.
        source: Where the peak rates are printed.
        read_at: Where the peak rates were read; None where they were in no source that was read.
        memory_mib: As the driver reports it.
        power_limit_w: The board's own limit; None where it was in no source that was read.
        aliases: What people call it.
    """

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    source: str
    read_at: str | None
    memory_mib: int
    power_limit_w: float | None = None
    aliases: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Memory as the driver reports it."""
        return self.memory_mib * MIB


@cache
def catalogue() -> dict[str, GpuModel]:
    """Return every GPU model in `gpus.yaml` by NVML's name."""
    listed = yaml.safe_load((files("wattdock.host") / "gpus.yaml").read_text("utf-8"))
    return {
        name: GpuModel(name, **figures | {"aliases": tuple(figures["aliases"])}) for name, figures in listed.items()
    }


def find(name: str) -> GpuModel:
    """Return the GPU model with this name or alias, in either case.

    Raises:
        ConfigError: No model has it; names the nearest.
    """
    by_name = {word.lower(): model for model in catalogue().values() for word in (model.name, *model.aliases)}
    if model := by_name.get(name.lower()):
        return model
    near = nearest(name, by_name)
    hint = f"did you mean {by_name[near].aliases[0]}? " if near else ""
    raise ConfigError(
        f"GPU {name!r} is not known", f"{hint}known are {', '.join(model.aliases[0] for model in catalogue().values())}"
    )


@dataclass(frozen=True)
class Peak:
    """Upper limits of one or several GPUs together.

    Attributes:
        flops_per_s: Dense tensor arithmetic with operands of some bits.
        memory_bytes_per_s: Reading and writing its own memory.
        source: Where the figures are printed, and where they were read.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    source: str


def why_no_peak(gpu_names: Sequence[str]) -> str | None:
    """Return why the peak rates of these GPUs are unknown, or None."""
    if not gpu_names:
        return "no GPU was used"
    if unknown := [name for name in dict.fromkeys(gpu_names) if name not in catalogue()]:
        return f"no peak is known for {', '.join(unknown)}"
    if guessed := [name for name in dict.fromkeys(gpu_names) if not catalogue()[name].read_at]:
        return f"the peak of {', '.join(guessed)} in gpus.yaml is not verified"
    return None


def peak_of(gpu_names: Sequence[str], bits: int = 16) -> Peak | None:
    """Return the peak rates of these GPUs together; None where `why_no_peak` gives a reason.

    Args:
        bits: Of an operand. Arithmetic of 8 bits is twice as fast as of 16 on each of these GPUs that has it; of 32 it
            counts as of 16, which is more than any does.
    """
    if why_no_peak(gpu_names):
        return None
    models = [catalogue()[name] for name in gpu_names]
    return Peak(
        flops_per_s=sum(model.flops_per_s for model in models) * (2 if bits < 16 else 1),
        memory_bytes_per_s=sum(model.memory_bytes_per_s for model in models),
        source="; ".join(dict.fromkeys(f"{model.source}, read at {model.read_at}" for model in models)),
    )
