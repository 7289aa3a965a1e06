"""What a host's GPUs are and do at one instant, and who measures on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from wattdock.errors import PreflightError
from wattdock.host import GpuInventory, leases


@dataclass(frozen=True)
class GpuSnapshot:
    """Every GPU of a host at one instant.

    Attributes:
        occupied: By UUID who uses a GPU, in words; None where it is free.
        leases: Who measures, by GPU UUID, "machine" or "cpu".
        leases_unknown: Why the leases of others cannot be read; None where they can.
    """

    inventory: GpuInventory = field(default_factory=lambda: GpuInventory(()))
    occupied: dict[str, str | None] = field(default_factory=dict)
    leases: dict[str, leases.Holder] = field(default_factory=dict)
    leases_unknown: str | None = None
    at_utc: str = ""
    schema_version: int = 1

    @classmethod
    def now(cls) -> GpuSnapshot:
        """Look at this host.

        Raises:
            PreflightError: An NVIDIA driver is there and cannot be talked to.
        """
        host = GpuInventory.here()
        holders: dict[str, leases.Holder] = {}
        unknown: PreflightError | None = None
        try:
            folder = leases.folder_in_use()
            holders, unknown = leases.holders(folder), leases.unshared(folder)
        except PreflightError as error:
            unknown = error
        occupied = {gpu.uuid: host.why_occupied(gpu) for gpu in host.gpus}
        at_utc = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(host, occupied, holders, str(unknown) if unknown else None, at_utc)
