"""Cards of energy counters, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.reports.terminal import console, pairs
from wattdock.text import print_json

if TYPE_CHECKING:
    from wattdock.metering import MeterCard


def show_card(card: MeterCard, *, as_json: bool) -> None:
    """Print what was found out about one GPU's counter; as JSON, one line."""
    if as_json:
        print_json(card, indent=None)
        return
    out = console()
    out.print(f"{card.gpu_name} {card.gpu_uuid}", style="bold", markup=False)
    out.print(pairs(_rows(card)))


def _rows(card: MeterCard) -> list[tuple[str, str]]:
    lag = "unknown" if card.lag_s is None else f"{_ms(card.lag_s)} ± {_ms(card.lag_std_s or 0.0)}"
    rows = [
        ("period", f"{_ms(card.period_s)}, standard deviation {_ms(card.period_std_s)}"),
        ("one read", f"{_ms(card.read_median_s)} median, {_ms(card.read_p99_s)} at the 99th percentile"),
        ("lag", f"{lag} from {card.pulses} pulses"),
    ]
    for step in card.steps:
        left_out = " (power overshoot: left out)" if step.overshoot else ""
        spread = f"standard deviation {_ms(step.standard_deviation_s)}, {step.steps} steps{left_out}"
        rows.append((f"  {step.kind}", f"{_ms(step.mean_s)}, {spread}"))
    if card.smoothing_periods is not None:
        rows.append(("smoothing", f"{card.smoothing_periods:.2f} periods after a step's own"))
    if card.additivity is not None:
        rows.append(("additivity", f"{card.additivity:+.3%}"))
    rows.append(("in results", f"not used: {card.doubt}" if card.doubt else "used on this GPU under this driver"))
    return rows


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:.1f} ms"
