"""Cards of energy counters: how far each trails, which results cite; kept under WATTDOCK_HOME.

A door of its own for calibration, which makes cards: what it needs of a timeline is here, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from wattdock.errors import StoreError
from wattdock.files import write_whole
from wattdock.metering.course import tick_instants
from wattdock.metering.curve import COUNTER_LAG
from wattdock.metering.timeline import MJ_PER_J, LagModel, MeterEvent, Ticks
from wattdock.opening import read_regular
from wattdock.text import json_text
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.host import Gpu
    from wattdock.metering.timeline import GpuTimeline

__all__ = ["COUNTER_LAG", "MJ_PER_J", "Cards", "LagModel", "MeterCard", "StepLag", "Ticks", "tick_instants"]


# Fewer pulses do not fill a period's phases. A counter that does not add up, or that still moves a period after a
# step, has no single lag.
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
            figure = "unknown" if self.additivity is None else f"{self.additivity:+.2%}"
            return f"its additivity is {figure}, not within {MAX_ADDITIVITY:.1%}"
        if self.smoothing_periods is None or self.smoothing_periods >= MAX_SMOOTHING_PERIODS:
            figure = "unknown" if self.smoothing_periods is None else f"{self.smoothing_periods:.2f} periods"
            return f"its smoothing is {figure}, not below {MAX_SMOOTHING_PERIODS:g}"
        return None


@dataclass(frozen=True)
class Cards:
    """The cards of this machine's counters, as they stood when they were read.

    Attributes:
        fitting: Cards that know their counter's lag, by GPU.
        problems: Why the card of a GPU is not used.
    """

    fitting: dict[str, MeterCard]
    problems: dict[str, str]

    @classmethod
    def read(cls, home: Path, gpus: Sequence[Gpu]) -> Cards:
        """Return the cards of these GPUs; a GPU may have none.

        Args:
            home: WATTDOCK_HOME, where cards are stored.
            gpus: The GPUs of this host now.
        """
        cards = cls({}, {})
        for gpu in gpus:
            file = _file(gpu.uuid, home)
            if not file.exists():
                continue
            try:
                card = MeterCard.model_validate_json(read_regular(file, owned=True))
            except (OSError, ValidationError) as error:
                cards.problems[gpu.uuid] = f"{file} cannot be read ({type(error).__name__})"
                continue
            if doubt := card.doubt or _mismatch(card, gpu):
                cards.problems[gpu.uuid] = f"the card of {card.measured_utc} does not fit: {doubt}"
            else:
                cards.fitting[gpu.uuid] = card
        return cards

    def applied_to(self, timeline: GpuTimeline, *, at_ns: int) -> GpuTimeline:
        """Return a GPU's timeline with what its card says, or with an event at `at_ns` that says why not.

        A GPU without a card keeps the assumed lag.
        """
        card = self.fitting.get(timeline.uuid)
        if card and card.lag_s is not None and card.lag_std_s is not None:
            return replace(timeline, card=card.measured_utc, lag=LagModel(card.lag_s, card.lag_std_s))
        if (problem := self.problems.get(timeline.uuid)) is None:
            return timeline
        said = f"the counter's lag is assumed: {problem}; make a new card with wattdock doctor --calibrate"
        return replace(timeline, events=(*timeline.events, MeterEvent(at_ns, "card_unused", said=said)))


def _mismatch(card: MeterCard, gpu: Gpu) -> str | None:
    """Return why a card does not describe this GPU under this driver; None where it does."""
    if gpu.driver_version is None:
        return "the driver's version is unknown"
    made, here = f"{card.gpu_name}, driver {card.driver_version}", f"{gpu.name}, driver {gpu.driver_version}"
    return None if made == here else f"it was made on {made}, and this is {here}"


def _file(uuid: str, home: Path) -> Path:
    return home / "meter-cards" / f"{uuid}.json"
