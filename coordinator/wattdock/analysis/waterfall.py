"""Where the joules of the passes went, in parts that add up to them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.metering import Span
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured
    from wattdock.analysis.windows import Phases, WindowSummary


class Waterfall(Stored):
    """`total_j` as `idle_j` and what was drawn above it, split once by time and once by work; null with the reason.

    Attributes:
        idle_j: What the GPUs would have drawn in the passes at their idle power with the model loaded, total − net.
        filling_j, steady_j, draining_j: Before, in and after the steady state of each pass, above idle.
        prefill_j, decode_j, between_rounds_j: As `phases` has them, above idle; the last also holds what its fit left.
        time_reason, work_reason: Why that split is unknown.
    """

    idle_j: float | None = None
    filling_j: float | None = None
    steady_j: float | None = None
    draining_j: float | None = None
    prefill_j: float | None = None
    decode_j: float | None = None
    between_rounds_j: float | None = None
    time_reason: str | None = None
    work_reason: str | None = None

    def splits(self) -> list[dict[str, float]]:
        """Return each split that is known: its parts by name, in order, in J; they add up to `total_j`."""
        names = (("filling", "steady", "draining"), ("prefill", "decode", "between_rounds"))
        splits = [{name: getattr(self, f"{name}_j") for name in ("idle", *of)} for of in names]
        return [split for split in splits if None not in split.values()]


def waterfall(
    measured: Measured,
    total_j: float | None,
    idle_j: float | None,
    *,
    windows: WindowSummary,
    phases: Phases,
) -> Waterfall | None:
    """Return where the joules of all passes went; None where the energy, or that of idling, is unknown.

    Args:
        total_j, idle_j: Of all passes, as measured, and at idle power.
        windows: Of the passes, in their order.
    """
    if total_j is None or idle_j is None:
        return None
    idle_w = idle_j / measured.passes_s
    steady = [figure for figure in windows.passes if figure.window == "steady_state"]
    before = [
        (restart, Span("filling", run_pass.span.start_ns, figure.start_ns))
        for (restart, run_pass), figure in zip(measured.passes, steady, strict=True)
        if figure.start_ns is not None
    ]
    by_time = {
        "filling": (
            known_sum(measured.joules(*span).total_j for span in before),
            sum(span.duration_s for _, span in before),
        ),
        "steady": (known_sum(figure.total_j for figure in steady), known_sum(figure.duration_s for figure in steady)),
    }
    by_work = {"prefill": (phases.prefill_j, phases.prefill_s), "decode": (phases.decode_j, phases.decode_s)}
    return Waterfall(
        idle_j=idle_j,
        **_above_idle(by_time, "draining", total_j - idle_j, idle_w),
        **_above_idle(by_work, "between_rounds", total_j - idle_j, idle_w),
        time_reason=next((figure.reason for figure in steady if figure.reason), None),
        work_reason=phases.reason,
    )


def _above_idle(
    parts: dict[str, tuple[float | None, float | None]], rest: str, net_j: float, idle_w: float
) -> dict[str, float]:
    """Return the parts' joules above idle, from their joules and seconds, and the rest; nothing if one is unknown."""
    above_j = {
        f"{name}_j": part_j - idle_w * seconds
        for name, (part_j, seconds) in parts.items()
        if part_j is not None and seconds is not None
    }
    return above_j | {f"{rest}_j": net_j - sum(above_j.values())} if len(above_j) == len(parts) else {}
