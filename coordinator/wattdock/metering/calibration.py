"""Calibrate an energy counter with load pulses, and store a card of it, which later results cite.

A card comes from a timeline and the instants at which the load really began and ended. Must not know: engines,
hardware, who makes the load.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import hypot, sqrt
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, MeterError, StoreError
from wattdock.files import write_whole
from wattdock.metering.course import tick_instants
from wattdock.metering.curve import COUNTER_LAG, EnergyCurve
from wattdock.metering.timeline import MJ_PER_J, LagModel, MeterEvent
from wattdock.metering.work_power import Pulse, WorkPower
from wattdock.opening import read_regular
from wattdock.text import from_json, json_text
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wattdock.host import Gpu
    from wattdock.metering.meter import Meter
    from wattdock.metering.timeline import GpuTimeline, Ticks

# Fewer pulses do not fill a period's phases. A counter that does not add up, or that still moves a period after a
# step, has no single lag.
MIN_PULSES, MAX_ADDITIVITY, MAX_SMOOTHING_PERIODS = 100, 0.005, 1.0
# Where the counter's course is taken from, before and after a step, in seconds from it.
BEFORE_S, AFTER_S = (-0.45, -0.02), (0.12, 0.55)
MIN_STEP_W = 50.0
# Right after the step against later, as a share of the step.
OVERSHOOT_SHARE = 0.05
# Closer to a level than this share of the step is on it.
LEVEL_SHARE = 0.1
MIN_STEPS = 10


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
        work_power: From further pulses, of known work; null where they do not decide it.
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
    work_power: WorkPower | None = None

    @classmethod
    def from_pulses(cls, gpu: GpuTimeline, pulses: Sequence[Pulse], info: Gpu, *, measured_utc: str) -> MeterCard:
        """Return what load pulses show of a counter.

        Args:
            gpu: The GPU's timeline.
            pulses: Those of known work tell what work costs, the others how the counter behaves.
            info: The same GPU as the host lists it.
        """
        ticks = gpu.ticks
        intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
        reads_s = (ticks.after_end_ns - ticks.after_start_ns) / NS_PER_S
        work, pulses = [each for each in pulses if each.bytes_moved], [each for each in pulses if not each.bytes_moved]
        steps = _step_lags(gpu, pulses)
        lag = _combined([step for step in steps if not step.overshoot and step.steps >= MIN_STEPS])
        curve = EnergyCurve(replace(gpu, lag=lag))
        return cls(
            gpu_uuid=gpu.uuid,
            gpu_name=info.name,
            driver_version=info.driver_version,
            measured_utc=measured_utc,
            pulses=len(pulses),
            period_s=float(np.median(intervals_s)),
            period_std_s=float(np.std(intervals_s)),
            read_median_s=float(np.median(reads_s)),
            read_p99_s=float(np.quantile(reads_s, 0.99)),
            lag_s=lag.mean_s if lag else None,
            lag_std_s=lag.std_s if lag else None,
            steps=steps,
            smoothing_periods=_smoothing(ticks, pulses),
            additivity=_additivity(gpu, pulses),
            work_power=WorkPower.of_pulses((each, curve.between(each.on_ns, each.off_ns).energy_j) for each in work),
        )

    @classmethod
    def record(cls, gpu: Gpu, meter: Meter, make_load: Callable[[], str]) -> MeterCard:
        """Return the card of a counter that `meter` records while `make_load` runs.

        Args:
            make_load: Returns a line for each load pulse, the arguments of `Pulse` in JSON.

        Raises:
            RunnerError: The load could not be made.
            MeterError: The GPU has no energy counter.
        """
        meter.start()
        try:
            printed = make_load()
        finally:
            timeline = meter.stop()
        pulses = [Pulse(*from_json(line)) for line in printed.splitlines()]
        recorded = timeline.gpus.get(gpu.uuid)
        if recorded is None or recorded.energy_source != "counter" or recorded.period_s is None:
            reason = timeline.reason or "see wattdock doctor"
            raise MeterError(f"{gpu.name} {gpu.uuid} has no energy counter to calibrate: {reason}", cause=Cause.NO_GPU)
        return cls.from_pulses(recorded, pulses, gpu, measured_utc=datetime.now(UTC).isoformat(timespec="seconds"))

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


def apparent_lag_s(ticks: Ticks, step_ns: int) -> float | None:
    """Return where the counter's courses before and after a step meet, in s after it; None without a clear step."""
    at_s, _, _ = tick_instants(ticks, step_ns)
    energy_j = (ticks.energy_mj - ticks.energy_mj[0]) / MJ_PER_J
    lines = []
    for window_s in (BEFORE_S, AFTER_S):
        first, end = np.searchsorted(at_s, window_s)
        if end - first < 3:
            return None
        lines.append(np.polyfit(at_s[first:end], energy_j[first:end], 1))
    (slope_a, level_a), (slope_b, level_b) = lines
    return None if abs(slope_a - slope_b) < MIN_STEP_W else float((level_a - level_b) / (slope_b - slope_a))


def _step_lags(gpu: GpuTimeline, pulses: Sequence[Pulse]) -> list[StepLag]:
    instants: dict[str, list[int]] = {}
    for pulse in pulses:
        instants.setdefault(f"{pulse.kind} on", []).append(pulse.on_ns)
        instants.setdefault(f"{pulse.kind} off", []).append(pulse.off_ns)
    step_lags = []
    for kind, steps_ns in instants.items():
        lags_s = [lag_s for at_ns in steps_ns if (lag_s := apparent_lag_s(gpu.ticks, at_ns)) is not None]
        if len(lags_s) > 1:
            overshoot = _overshoots(gpu.ticks, steps_ns)
            mean_s, std_s = float(np.mean(lags_s)), float(np.std(lags_s, ddof=1))
            step_lags.append(
                StepLag(kind=kind, steps=len(lags_s), mean_s=mean_s, standard_deviation_s=std_s, overshoot=overshoot)
            )
    return step_lags


def _overshoots(ticks: Ticks, steps_ns: Sequence[int]) -> bool:
    """Return whether power right after a kind of step exceeds later power, on average over the steps.

    "Right after" is the first interval between counter changes that begins after the step.
    """
    at_ns, energy_j = ticks.after_start_ns, ticks.energy_mj / MJ_PER_J
    shares = []
    for step_ns in steps_ns:
        first = int(np.searchsorted(at_ns, step_ns))
        if not 4 <= first < len(at_ns) - 4:
            continue
        before_w, early_w, late_w = (
            (energy_j[end] - energy_j[start]) / (at_ns[end] - at_ns[start]) * NS_PER_S
            for start, end in ((first - 4, first - 1), (first, first + 1), (first + 2, first + 4))
        )
        if abs(late_w - before_w) >= MIN_STEP_W:
            shares.append((early_w - late_w) / (late_w - before_w))
    return bool(shares) and float(np.mean(shares)) > OVERSHOOT_SHARE


def _combined(steps: Sequence[StepLag]) -> LagModel | None:
    """Return the mean lag over kinds of steps; its uncertainty from the spread between kinds and within them.

    The spread between kinds is that of the assumed lag where there is one kind only.
    """
    if not steps:
        return None
    means_s = [step.mean_s for step in steps]
    within_s = sqrt(sum(step.standard_deviation_s**2 / step.steps for step in steps)) / len(steps)
    between_s = float(np.std(means_s, ddof=1)) if len(means_s) > 1 else COUNTER_LAG.std_s
    return LagModel(mean_s=float(np.mean(means_s)), std_s=hypot(within_s, between_s))


def _smoothing(ticks: Ticks, pulses: Sequence[Pulse]) -> float | None:
    """Return the mean number of periods, after the period with the step, whose power is at neither level."""
    at_ns = ticks.after_start_ns
    power_w = np.diff(ticks.energy_mj) / np.diff(at_ns) * NS_PER_S / MJ_PER_J
    counts = []
    for step_ns in (edge_ns for pulse in pulses for edge_ns in (pulse.on_ns, pulse.off_ns)):
        step = int(np.searchsorted(at_ns, step_ns)) - 1
        if step < 3 or step + 5 > len(power_w):
            continue
        before_w, after_w = float(np.median(power_w[step - 3 : step])), float(np.median(power_w[step + 2 : step + 5]))
        if abs(after_w - before_w) < MIN_STEP_W:
            continue
        off_level = np.abs(power_w[step + 1 : step + 4] - after_w) > LEVEL_SHARE * abs(after_w - before_w)
        counts.append(int(np.count_nonzero(off_level)))
    return float(np.mean(counts)) if counts else None


def _additivity(gpu: GpuTimeline, pulses: Sequence[Pulse]) -> float | None:
    """Return the sum of the energies of pulses and gaps ÷ the counter's difference over all of them − 1."""
    if len(pulses) < 2:
        return None
    edges_ns = [edge for pulse in pulses for edge in (pulse.on_ns, pulse.off_ns)]
    curve = EnergyCurve(gpu)
    first, last = np.searchsorted(gpu.ticks.after_end_ns, [edges_ns[0], edges_ns[-1]]) - 1
    whole_j = float(gpu.ticks.energy_mj[last] - gpu.ticks.energy_mj[first]) / MJ_PER_J
    parts_j = known_sum(curve.between(start_ns, end_ns).energy_j for start_ns, end_ns in itertools.pairwise(edges_ns))
    return parts_j / whole_j - 1 if parts_j is not None and whole_j else None


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
            lag, work = LagModel(card.lag_s, card.lag_std_s), card.work_power
            usable = work if work and not work.doubt else None
            return replace(timeline, card=card.measured_utc, lag=lag, work_power=usable)
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
