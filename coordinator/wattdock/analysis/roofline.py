"""How close the measured passes came to what their GPUs allow: arithmetic, memory bandwidth or power. Pure.

Source: Choi et al., A Roofline Model of Energy, IPDPS 2013: time and energy of arithmetic and memory traffic beside a
constant power, with a cap on power as a third limit of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wattdock.values import Stored, all_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.host import gpu_models
    from wattdock.metering import GpuTimeline

Wall = Literal["arithmetic", "bandwidth", "power"]
NO_POWER = "what work costs these GPUs was not measured: wattdock doctor --meter, before the experiment"
NO_ROOM = "the power limit is unknown, or not above the constant power"


class Roofline(Stored):
    """The least time and energy of the work of all passes on the GPUs used, and how far above it the passes lie.

    Attributes:
        wall: The limit that takes longest; where `reason` says why power is unknown, arithmetic or bandwidth.
        least_s: By each limit that is known; power's is the energy of the work ÷ what the power limits leave for it.
        time_s: The longest of these.
        energy_j: Of the work, and constant power over `time_s`.
        time_ratio, energy_ratio: Measured ÷ least.
        power_limit_w, constant_w: Of all GPUs used.
        j_per_operation, j_per_byte: Mean over the GPUs, from load pulses, never from a measurement that is judged.
        misfit: Largest share by which the power of a load pulse differs from what these figures say of it.
        reason: Why power, and with it the least energy, is unknown.
    """

    wall: Wall
    least_s: dict[Wall, float]
    time_s: float
    time_ratio: float
    energy_j: float | None = None
    energy_ratio: float | None = None
    power_limit_w: float | None = None
    constant_w: float | None = None
    j_per_operation: float | None = None
    j_per_byte: float | None = None
    misfit: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Work:
    """What passes needed at least, summed over the GPUs used."""

    operations: float
    bytes_read: float


@dataclass(frozen=True)
class PowerBudget:
    """What work costs GPUs that share it evenly; see `Roofline`."""

    power_limit_w: float
    constant_w: float
    j_per_operation: float
    j_per_byte: float
    misfit: float

    @classmethod
    def of(cls, gpus: Sequence[tuple[float | None, GpuTimeline | None]], bits: int) -> PowerBudget | str:
        """Return the budget of GPUs, each with its power limit in W and its timeline, or why there is none.

        Args:
            bits: Of an operand of the arithmetic.
        """
        powers = all_known(timeline.work_power if timeline else None for _, timeline in gpus)
        per_operation = all_known(power.j_per_operation.get(bits) for power in powers or ())
        if not powers or per_operation is None:
            return NO_POWER
        limits_w, constant_w = all_known(limit_w for limit_w, _ in gpus), sum(power.constant_w for power in powers)
        if limits_w is None or sum(limits_w) <= constant_w:
            return NO_ROOM
        return cls(
            power_limit_w=sum(limits_w),
            constant_w=constant_w,
            j_per_operation=sum(per_operation) / len(gpus),
            j_per_byte=sum(power.j_per_byte for power in powers) / len(gpus),
            misfit=max(power.worst_misfit for power in powers),
        )


def roofline(
    work: Work, peak: gpu_models.Peak, budget: PowerBudget | str, *, duration_s: float, total_j: float | None
) -> Roofline:
    """Return the least time and energy of the work.

    Args:
        peak: Of all GPUs together, for operands of the work's bits.
        budget: Or why it is unknown.
        duration_s, total_j: As measured.
    """
    least_s: dict[Wall, float] = {
        "arithmetic": work.operations / peak.flops_per_s,
        "bandwidth": work.bytes_read / peak.memory_bytes_per_s,
    }
    known: dict[str, float] = {}
    if isinstance(budget, PowerBudget):
        work_j = budget.j_per_operation * work.operations + budget.j_per_byte * work.bytes_read
        least_s["power"] = work_j / (budget.power_limit_w - budget.constant_w)
        known = vars(budget) | {"energy_j": work_j + budget.constant_w * max(least_s.values())}
        known |= {"energy_ratio": total_j / known["energy_j"]} if total_j else {}
    wall = max(least_s, key=lambda limit: least_s[limit])
    time_s = least_s[wall]
    reason = None if known else str(budget)
    return Roofline(wall=wall, least_s=least_s, time_s=time_s, time_ratio=duration_s / time_s, reason=reason, **known)
