"""A folder that looks like the kernel's powercap tree, with counters that can be set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RANGE_UJ = 262_143_328_850


def add_domain(root: Path, folder: str, name: str, energy_uj: int = 0, range_uj: int = RANGE_UJ) -> Path:
    """Make one domain, "intel-rapl:0:1", and return its counter's file."""
    (root / folder).mkdir(parents=True)
    (root / folder / "name").write_text(f"{name}\n")
    (root / folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    counter = root / folder / "energy_uj"
    set_uj(counter, energy_uj)
    return counter


def set_uj(counter: Path, energy_uj: int) -> None:
    """Put a value there at once, as the kernel does: no reader sees half a number."""
    partial = counter.with_suffix(".new")
    partial.write_text(f"{energy_uj}\n")
    partial.replace(counter)


def two_sockets(root: Path, range_uj: int = RANGE_UJ) -> dict[str, Path]:
    """Two packages with memory, and what must not be added to them; counters by wattdock's name."""
    add_domain(root, "intel-rapl:0:0", "core")
    add_domain(root, "intel-rapl:2", "psys")
    # The same package once more, through another interface.
    add_domain(root, "intel-rapl-mmio:0", "package-0")
    (root / "intel-rapl").mkdir()
    return {
        "package-0": add_domain(root, "intel-rapl:0", "package-0", range_uj=range_uj),
        "package-0-dram": add_domain(root, "intel-rapl:0:1", "dram", range_uj=range_uj),
        "package-1": add_domain(root, "intel-rapl:1", "package-1", range_uj=range_uj),
    }
