"""Models of GPUs that are known by name; figures live in data/gpus.yaml with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from wattdock.errors import ConfigError
from wattdock.text import nearest

MIB = 1 << 20


@dataclass(frozen=True)
class GpuModel:
    """What one GPU has.

    Attributes:
        name: As NVML gives it.
        flops_per_s: Dense 16-bit tensor arithmetic.
        memory_bytes_per_s: Reading and writing its own memory.
        source: Where the peak rates are printed.
        read_at: Where they were read; None: written from memory. The other `…read_at` alike for their figures.
        memory_mib: As the driver reports it.
        power_limit_w: Default limit of the board.
        link, link_bytes_per_s: To other GPUs, both directions together.
        aliases: What people call it.
    """

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    source: str
    read_at: str | None
    memory_mib: int
    power_limit_w: float
    memory_read_at: str | None
    link: str
    link_bytes_per_s: float
    link_read_at: str | None
    aliases: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Memory as the driver reports it."""
        return self.memory_mib * MIB

    @property
    def unverified(self) -> tuple[str, ...]:
        """Which of its figures were found in no source that was read."""
        read = {"peak rates": self.read_at, "memory and power limit": self.memory_read_at, "link": self.link_read_at}
        return tuple(what for what, where in read.items() if where is None)


@cache
def gpu_models() -> dict[str, GpuModel]:
    """Return every known GPU by NVML's name."""
    written = yaml.safe_load((files("wattdock.host") / "gpus.yaml").read_text("utf-8"))
    return {name: GpuModel(name, **facts | {"aliases": tuple(facts["aliases"])}) for name, facts in written.items()}


def gpu_model(name: str) -> GpuModel:
    """Return the GPU with this name or alias, in either case.

    Raises:
        ConfigError: None has it; names the nearest.
    """
    by_name = {word.lower(): model for model in gpu_models().values() for word in (model.name, *model.aliases)}
    if found := by_name.get(name.lower()):
        return found
    near = nearest(name, by_name)
    hint = f"did you mean {by_name[near].aliases[0]}? " if near else ""
    raise ConfigError(
        f"GPU {name!r} is not known; {hint}known are {', '.join(one.aliases[0] for one in gpu_models().values())}"
    )
