"""How close the measured passes came to what their GPUs allow: arithmetic, memory bandwidth or power. Pure.

Source: Choi et al., A Roofline Model of Energy, IPDPS 2013, and, with power as a third limit of time, Algorithmic Time,
Energy, and Power on Candidate HPC Compute Building Blocks, IPDPS 2014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from wattdock.values import NotNegative, Positive, Stored, all_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.host import gpu_models
    from wattdock.metering import GpuTimeline

Limit = Literal["arithmetic", "bandwidth", "power"]
UNUSED_CARD = "a GPU's meter card does not say what work costs, or misses its own pulses: wattdock doctor --calibrate"
NO_CARD = "no meter card says what work costs every GPU used: wattdock doctor --calibrate, before the experiment"
NO_ROOM = "the power limit is unknown, or not above the constant power"


class PowerBudget(Stored):
    """What work costs GPUs that share it evenly, from load pulses, never from a measurement that is judged.

    Attributes:
        power_limit_w, constant_w: Of all GPUs used.
        j_per_operation, j_per_byte: Mean over the GPUs.
        misfit: Largest share by which these figures miss the power of a pulse that they were fitted to.
    """

    power_limit_w: Positive
    constant_w: NotNegative
    j_per_operation: NotNegative
    j_per_byte: NotNegative
    misfit: NotNegative

    @classmethod
    def of(cls, gpus: Sequence[tuple[float | None, GpuTimeline | None]], bits: int) -> tuple[PowerBudget | None, str]:
        """Return the budget of GPUs, each with its power limit in W and its timeline, or else why there is none.

        Args:
            bits: Of an operand of the arithmetic.
        """
        powers = all_known(timeline.work_power if timeline else None for _, timeline in gpus)
        if not powers:
            return None, UNUSED_CARD if all(timeline and timeline.card for _, timeline in gpus) else NO_CARD
        if (per_operation := all_known(power.j_per_operation.get(bits) for power in powers)) is None:
            return None, f"a GPU's meter card has no cost of {bits}-bit operations"
        limits_w, constant_w = all_known(limit_w for limit_w, _ in gpus), sum(power.constant_w for power in powers)
        if limits_w is None or sum(limits_w) <= constant_w:
            return None, NO_ROOM
        budget = cls(
            power_limit_w=sum(limits_w),
            constant_w=constant_w,
            j_per_operation=sum(per_operation) / len(gpus),
            j_per_byte=sum(power.j_per_byte for power in powers) / len(gpus),
            misfit=max(power.worst_misfit for power in powers),
        )
        return budget, ""


class Roofline(Stored):
    """The least time and energy of the work of all passes on the GPUs used, and how far above it the passes lie.

    Attributes:
        nearest_limit: The one that takes longest; where `reason` says why power is unknown, arithmetic or bandwidth.
        least_s: By each limit that is known; power's is the energy of the work ÷ what the power limits leave for it.
        time_ratio: Measured ÷ the longest of these.
        energy_j: Of the work, and of constant power over the longest of these.
        energy_ratio: Measured ÷ `energy_j`.
        budget: Null with the reason where power, and with it the least energy, is unknown.
    """

    nearest_limit: Limit
    least_s: Annotated[dict[Limit, Positive], Field(min_length=1)]
    time_ratio: Positive
    energy_j: Positive | None = None
    energy_ratio: Positive | None = None
    budget: PowerBudget | None = None
    reason: str | None = None

    @classmethod
    def of(
        cls,
        operations: float,
        bytes_read: float,
        peak: gpu_models.Peak,
        budget: tuple[PowerBudget | None, str],
        *,
        duration_s: float,
        total_j: float | None,
    ) -> Roofline:
        """Return the least time and energy of work, summed over the GPUs used.

        Args:
            operations, bytes_read: More than 0.
            peak: Of all GPUs together, for the operands of the arithmetic.
            budget: Or why it is unknown.
            duration_s, total_j: As measured.
        """
        least_s: dict[Limit, float] = {
            "arithmetic": operations / peak.flops_per_s,
            "bandwidth": bytes_read / peak.memory_bytes_per_s,
        }
        power, reason = budget
        energy_j = None
        if power and (work_j := power.j_per_operation * operations + power.j_per_byte * bytes_read):
            least_s["power"] = work_j / (power.power_limit_w - power.constant_w)
            energy_j = work_j + power.constant_w * max(least_s.values())
        nearest = max(least_s, key=lambda limit: least_s[limit])
        return cls(
            nearest_limit=nearest,
            least_s=least_s,
            time_ratio=duration_s / least_s[nearest],
            energy_j=energy_j,
            energy_ratio=total_j / energy_j if total_j and energy_j else None,
            budget=power,
            reason=reason or None,
        )

    @property
    def shares(self) -> dict[Limit, float]:
        """Least time by each limit ÷ measured time, the nearest limit first."""
        measured_s = self.time_ratio * self.least_s[self.nearest_limit]
        shares = {limit: least_s / measured_s for limit, least_s in self.least_s.items()}
        return dict(sorted(shares.items(), key=lambda share: -share[1]))
