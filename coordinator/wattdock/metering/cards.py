"""Cards of energy counters: how far each trails, which results cite; kept under WATTDOCK_HOME.

A door of its own for calibration, which makes cards: what it needs of a timeline is here, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from wattdock.errors import StoreError
from wattdock.files import write_whole
from wattdock.metering.curve import COUNTER_LAG
from wattdock.metering.power_profile import tick_instants
from wattdock.metering.timeline import MJ_PER_J, LagModel, MeterEvent, Ticks
from wattdock.opening import read_regular
from wattdock.text import json_text
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.host import Gpu
    from wattdock.metering.timeline import GpuTimeline

__all__ = ["COUNTER_LAG", "MJ_PER_J", "LagModel", "MeterCard", "StepLag", "Ticks", "tick_instants"]


# Limits of a card that is used: fewer pulses do not fill a period's phases, and a counter that does not add up, or
# still moves a period after a step, has no single lag.
MIN_PULSES, MAX_ADDITIVITY, MAX_SMOOTHING_PERIODS = 100, 0.005, 1.0


class StepLag(Stored):
    """How far the counter trails one kind of load step.

    Attributes:
        overshoot: Power right after the step exceeded what followed, which makes the step look early: this kind is left
            out of the card's lag.
    """

    kind: str
    steps: int
    mean_s: float
    standard_deviation_s: float
    overshoot: bool


class MeterCard(Stored):
    """One GPU's energy counter, from load pulses made by another process at random phases.

    Attributes:
        period_s, period_std_s: Between changes of the counter.
        read_median_s, read_p99_s: Length of one call.
        lag_s, lag_std_s: Mean over the kinds of steps without overshoot, and its standard uncertainty.
        smoothing_periods: Mean number of periods, after the one that holds a step, that still lie between the two
            levels: 0 for a counter that shows a step at once.
        additivity: Sum of the pulses' and gaps' energies, one by one, ÷ the counter's own difference over all − 1.
    """

    gpu_uuid: str
    gpu_name: str
    driver_version: str | None
    measured_utc: str
    pulses: int
    period_s: float
    period_std_s: float
    read_median_s: float
    read_p99_s: float
    lag_s: float | None
    lag_std_s: float | None
    steps: list[StepLag]
    smoothing_periods: float | None
    additivity: float | None

    def store(self, home: Path) -> Path:
        """Store the card under `home`, WATTDOCK_HOME, replacing an older card of this GPU; return its file.

        Raises:
            StoreError: It cannot be written.
        """
        file = _file(self.gpu_uuid, home)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, f"{json_text(self, indent=2)}\n".encode())
        except OSError as error:
            raise StoreError(
                f"cannot write {file}: {error.strerror or error}", "choose another WATTDOCK_HOME"
            ) from error
        return file

    @property
    def doubt(self) -> str | None:
        """Why results do not use this card's lag; None if they do."""
        if self.lag_s is None or self.lag_std_s is None:
            return "it has no lag"
        if self.pulses < MIN_PULSES:
            return f"it has {self.pulses} pulses, fewer than {MIN_PULSES}"
        if self.additivity is None or abs(self.additivity) > MAX_ADDITIVITY:
            return f"its additivity ({self.additivity}) is not within {MAX_ADDITIVITY}"
        if self.smoothing_periods is None or self.smoothing_periods >= MAX_SMOOTHING_PERIODS:
            return f"its smoothing ({self.smoothing_periods} periods) is not below {MAX_SMOOTHING_PERIODS:g}"
        return None


def read_cards(home: Path, gpus: Sequence[Gpu]) -> dict[str, MeterCard | str]:
    """Return the cards of GPUs by UUID, or why a card is not used; a GPU may have none.

    Args:
        home: WATTDOCK_HOME, where cards are stored.
        gpus: The GPUs of this host now.
    """
    cards: dict[str, MeterCard | str] = {}
    for gpu in gpus:
        file = _file(gpu.uuid, home)
        if not file.exists():
            continue
        try:
            card = MeterCard.model_validate_json(read_regular(file, owned=True))
        except (OSError, ValidationError) as error:
            cards[gpu.uuid] = f"{file} cannot be read ({type(error).__name__})"
            continue
        made, here = f"{card.gpu_name}, driver {card.driver_version}", f"{gpu.name}, driver {gpu.driver_version}"
        doubt = card.doubt
        if gpu.driver_version is None or made != here:
            doubt = doubt or f"it was made on {made}, and this is {here}"
        cards[gpu.uuid] = f"the card of {card.measured_utc} does not fit: {doubt}" if doubt else card
    return cards


def with_card(timeline: GpuTimeline, card: MeterCard | str | None, *, at_ns: int) -> GpuTimeline:
    """Return a GPU's timeline with the lag of its card, or with an event at `at_ns` that says why not.

    A GPU without a card keeps the assumed lag.
    """
    if card is None:
        return timeline
    if isinstance(card, MeterCard) and card.lag_s is not None and card.lag_std_s is not None:
        return replace(timeline, card=card.measured_utc, lag=LagModel(card.lag_s, card.lag_std_s))
    said = f"the counter's lag is assumed: {card}; make a new card with wattdock doctor --calibrate"
    return replace(timeline, events=(*timeline.events, MeterEvent(at_ns, "card_unused", said=said)))


def _file(uuid: str, home: Path) -> Path:
    return home / "meter-cards" / f"{uuid}.json"
