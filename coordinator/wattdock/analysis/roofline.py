"""How close the measured passes came to what their GPUs allow: arithmetic or memory bandwidth. Pure.

Source: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from wattdock.values import Positive, Stored

if TYPE_CHECKING:
    from wattdock.host import gpu_models

Limit = Literal["arithmetic", "bandwidth"]


class Roofline(Stored):
    """The least time of the work of all passes on the GPUs used, and how far above it the passes lie.

    Attributes:
        nearest_limit: The one that takes longest.
        least_s: By each limit.
        time_ratio: Measured ÷ the longest of these.
    """

    nearest_limit: Limit
    least_s: Annotated[dict[Limit, Positive], Field(min_length=1)]
    time_ratio: Positive

    @classmethod
    def of(cls, operations: float, bytes_read: float, peak: gpu_models.Peak, *, duration_s: float) -> Roofline:
        """Return the least time of work, summed over the GPUs used.

        Args:
            operations, bytes_read: More than 0.
            peak: Of all GPUs together, for the operands of the arithmetic.
            duration_s: As measured.
        """
        least_s: dict[Limit, float] = {
            "arithmetic": operations / peak.flops_per_s,
            "bandwidth": bytes_read / peak.memory_bytes_per_s,
        }
        nearest = max(least_s, key=lambda limit: least_s[limit])
        return cls(nearest_limit=nearest, least_s=least_s, time_ratio=duration_s / least_s[nearest])

    @property
    def shares(self) -> dict[Limit, float]:
        """Least time by each limit ÷ measured time, the nearest limit first."""
        measured_s = self.time_ratio * self.least_s[self.nearest_limit]
        shares = {limit: least_s / measured_s for limit, least_s in self.least_s.items()}
        return dict(sorted(shares.items(), key=lambda share: -share[1]))
