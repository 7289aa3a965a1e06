"""Servers under load, and meters that read their watts: what `--host-readings` is held to. Knows nothing of how.

A server takes a constant, its boards' watts through a power supply that is not quite linear, what its CPU takes, fans
that follow the boards slowly, and a remainder that wanders. A meter sees that late, averaged, scattered and rounded.
"""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from make.records import measured, timeline
from scipy.signal import lfilter
from seams.metering import SAMPLES, Series, Ticks

from wattdock.clock import NS_PER_S
from wattdock.metering import GpuTimeline
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Draw = Callable[[np.random.Generator], float]

# How finely a server is simulated, s, and where its clock of all instants stands at the begin of Unix time 1.8e9.
DT_S, STARTED_NS, UNIX_S = 0.1, 50 * NS_PER_S, 1.8e9
RESTARTS = 3


def between(low: float, high: float) -> Draw:
    return lambda random: float(random.uniform(low, high))


def one_of(*values: float) -> Draw:
    return lambda random: float(random.choice(values))


class Meter(NamedTuple):
    """A meter that is asked again and again.

    Attributes:
        every_s, lag_s, mean_s: Between readings; how old they are; over how long they are means.
        step_w, noise: Rounding, and scatter as a share of full power.
        whole_seconds: Whether times are cut off (1) or have milliseconds (0).
        gap_s: Length of a gap in each window; a twentieth of the other readings is lost, too.
        smooth_s: Time constant of an exponential mean.
        hold_s: How often the meter has a new reading.
        jitter_s: By how much lags differ.
    """

    every_s: Draw = one_of(1, 2, 3, 5)
    lag_s: Draw = between(0, 5)
    mean_s: Draw = one_of(0, 1, 3)
    step_w: Draw = one_of(1, 2, 4, 6, 10)
    noise: Draw = between(0, 0.01)
    whole_seconds: Draw = one_of(0, 1)
    gap_s: Draw = one_of(0)
    smooth_s: Draw = one_of(0)
    hold_s: Draw = one_of(0)
    jitter_s: Draw = one_of(0)


METERS = {
    "ipmi": Meter(),
    "ipmi, slow": Meter(every_s=one_of(10, 15, 20, 30)),
    "ipmi, gaps": Meter(gap_s=between(5, 30)),
    "ipmi, 10 W": Meter(step_w=one_of(8, 10), noise=between(0, 0.0005)),
    "pdu": Meter(every_s=one_of(1, 2, 5, 10), mean_s=one_of(1, 2, 5), step_w=one_of(1), noise=between(0, 0.003)),
    "without fault": Meter(lag_s=one_of(0), noise=one_of(0), step_w=one_of(1), whole_seconds=one_of(0)),
}
# Meters that the method was not made for.
OTHERS = {
    "new every 2 to 6 s": Meter(hold_s=between(2, 6), every_s=one_of(1, 2)),
    "exponential mean": Meter(smooth_s=between(1, 6), mean_s=one_of(0), lag_s=between(0, 2)),
    "mean of 10 s": Meter(mean_s=one_of(8, 10), lag_s=between(0, 2)),
    "uneven lag": Meter(jitter_s=between(0.5, 2), lag_s=between(0, 3)),
}
LOADS = ("steady", "still", "steps", "saw-tooth", "wander", "ramp", "bursts")


class Drawn(NamedTuple):
    """What a run leaves behind, and the truth.

    Attributes:
        result: As much of a result as readings are laid beside.
        csv: The file of readings.
    """

    result: Any
    restarts: list[RestartRecord]
    csv: str
    host_over_boards: float


def draw(random: np.random.Generator, load: str, meter: Meter) -> Drawn:
    """Return a run of three restarts on a server drawn anew, with windows of 20 to 120 s."""
    boards = int(random.choice([1, 2, 4, 8]))
    full_w, idle_w = boards * random.uniform(250, 700), boards * random.uniform(60, 120)
    constant_w, slope = random.uniform(120, 250) + boards * random.uniform(20, 90), random.uniform(1.02, 1.15)
    fans, fan_s, window_s = random.uniform(0, 0.06), random.uniform(10, 60), random.uniform(20, 120)
    wander_w = (constant_w + full_w) * (random.uniform(0, 0.0003) if load == "still" else random.uniform(0.001, 0.01))
    seen = SimpleNamespace(**{name: each(random) for name, each in meter._asdict().items()})
    noise_w = 0.0 if load == "still" else (constant_w + full_w) * seen.noise
    begin_s, lines, restarts, windows, joules = 0.0, ["time,watts"], [], [], np.zeros(2)
    for restart in range(RESTARTS):
        # Idle, loading, lead-in, window, behind the window, idle.
        lengths_s = [random.uniform(10, 20), random.uniform(15, 40), random.uniform(21, 45), window_s, 3.0, 30.0]
        lengths_s[3] *= random.uniform(0.97, 1.03)
        lengths_s[4] = random.uniform(0.2, 5)
        edges = np.cumsum([0, *(int(length_s / DT_S) for length_s in lengths_s)])
        boards_w = np.full(edges[-1], idle_w)
        loading = random.random(1 + (edges[2] - edges[1]) // 20).repeat(20)[: edges[2] - edges[1]]
        boards_w[edges[1] : edges[2]] += (full_w - idle_w) * random.uniform(0, 0.4) * loading
        boards_w[edges[2] : edges[5]] = np.maximum(_load(load, random, edges[5] - edges[2], full_w), idle_w)
        cpu_w = np.zeros(edges[-1])
        cpu_w[edges[1] : edges[2]], cpu_w[edges[2] : edges[5]] = constant_w * random.uniform(0, [0.3, 0.2])
        host_w = constant_w * random.uniform(0.98, 1.02) + slope * boards_w + cpu_w + fans * _smooth(boards_w, fan_s)
        host_w += full_w * random.uniform(-0.02, 0.02) * (boards_w / full_w) ** 2
        host_w += _wandering(random, edges[-1], wander_w, random.uniform(3, 60))
        at_s = np.arange(edges[-1] + 1) * DT_S
        drawn_j = [np.concatenate(([0.0], np.cumsum(watts) * DT_S)) for watts in (host_w, boards_w)]
        window = edges[3:5] * DT_S
        joules += [float(np.diff(np.interp(window, at_s, each))[0]) for each in drawn_j]
        lines += _read(random, seen, at_s, host_w, window, begin_s, noise_w)
        # Of the boards, the record keeps all, or 6 s around the pass alone.
        kept = slice(0 if random.random() < 0.5 else max(0, edges[2] - 60), edges[5] + 60)
        ns = np.round((begin_s + at_s) * NS_PER_S).astype(np.int64) + STARTED_NS
        power = Series(ns[1:][kept], boards_w[kept])
        gpu = GpuTimeline("GPU-a", "counter", Ticks.from_rows(), {SAMPLES: power})
        done = measured(0, ns[edges[2]] / NS_PER_S, ns[edges[5]] / NS_PER_S, ())
        utc = datetime.fromtimestamp(UNIX_S + begin_s, UTC).isoformat(timespec="milliseconds")
        started_ns = STARTED_NS + round(begin_s * NS_PER_S)
        restarts.append(RestartRecord(restart, utc, started_ns, passes=(done,), timeline=timeline(gpu)))
        start_ns, end_ns = (int(ns[edge]) for edge in edges[3:5])
        windows.append(_Window(start_ns, (end_ns - start_ns) / NS_PER_S, float(np.diff(drawn_j[1][edges[3:5]])[0])))
        begin_s = round(begin_s + edges[-1] * DT_S + random.uniform(5, 60), 3)
    energy = _Energy(_Windows(windows))
    return Drawn(_Result(energy), restarts, "\n".join(lines) + "\n", joules[0] / joules[1])


class _Window(NamedTuple):
    start_ns: int
    duration_s: float
    total_j: float


class _Windows(NamedTuple):
    passes: list[_Window]

    def of_headline(self) -> list[_Window]:
        return self.passes


class _Energy(NamedTuple):
    windows: _Windows
    bystander_j: dict[str, float] = {}  # noqa: RUF012


class _Result(NamedTuple):
    energy: _Energy
    used_gpus: tuple[str, ...] = ("GPU-a",)
    environment: None = None


def _read(
    random: np.random.Generator,
    meter: SimpleNamespace,
    at_s: Floats,
    host_w: Floats,
    window_s: Floats,
    begin_s: float,
    noise_w: float,
) -> list[str]:
    """Return the lines that a meter's readings make."""
    asked_s = np.arange(random.uniform(0, meter.every_s), at_s[-1] - 1, meter.every_s)
    asked_s += random.uniform(-0.1, 0.1, len(asked_s)) * min(meter.every_s, 1)
    of_s = asked_s - meter.lag_s - random.uniform(0, 1, len(asked_s)) * meter.jitter_s
    if meter.hold_s:
        of_s = np.floor(of_s / meter.hold_s) * meter.hold_s
    if meter.smooth_s:
        watts = np.interp(of_s, at_s[1:], _smooth(host_w, meter.smooth_s))
    else:
        drawn_j, mean_s = np.concatenate(([0.0], np.cumsum(host_w) * DT_S)), max(meter.mean_s, DT_S)
        watts = (np.interp(of_s, at_s, drawn_j) - np.interp(of_s - mean_s, at_s, drawn_j)) / mean_s
    # The same reading, asked for twice, has the same scatter.
    watts += random.normal(0, noise_w, len(watts))[np.unique(of_s, return_inverse=True)[1]]
    watts = np.round(watts / meter.step_w) * meter.step_w
    kept = of_s - meter.mean_s > 0
    if meter.gap_s:
        gap_s = random.uniform(*window_s)
        kept &= ((asked_s < gap_s) | (asked_s > gap_s + meter.gap_s)) & (random.random(len(kept)) > 0.05)
    unix_s = UNIX_S + begin_s + asked_s[kept]
    if meter.whole_seconds:
        unix_s = np.floor(unix_s)
    return [f"{at:.3f},{each:g}" for at, each in zip(unix_s, watts[kept], strict=True)]


def _load(kind: str, random: np.random.Generator, count: int, full_w: float) -> Floats:
    """Return what boards draw under a load."""
    at_s = np.arange(count) * DT_S
    if kind in ("steady", "still"):
        spread = random.uniform(0.0001, 0.001) if kind == "still" else random.uniform(0.002, 0.02)
        return full_w * (1 + _wandering(random, count, spread, random.uniform(2, 40)))
    if kind == "steps":
        length_s = random.uniform(4, 25)
        levels = random.uniform(0.4, 1, int(count * DT_S / length_s) + 2)
        return np.asarray(full_w * levels[((at_s + random.uniform(0, length_s)) / length_s).astype(int)])
    if kind == "saw-tooth":
        period_s = random.uniform(0.8, 12)
        phase = (at_s / period_s * (1 + _wandering(random, count, 0.01, 20)) + random.random()) % 1
        return full_w * np.where(phase < random.uniform(0.1, 0.4), 1, random.uniform(0.5, 0.8) + 0.1 * phase)
    if kind == "wander":
        return np.asarray(full_w * np.clip(0.75 + _wandering(random, count, 0.1, random.uniform(5, 60)), 0.3, 1))
    if kind == "ramp":
        return np.asarray(full_w * (0.6 + 0.4 * np.minimum(1, at_s / random.uniform(30, 100))))
    return np.asarray(full_w * np.where(_wandering(random, count, 1, random.uniform(0.3, 2)) > 0.6, 1, 0.45))


def _wandering(random: np.random.Generator, count: int, std: float, constant_s: float) -> Floats:
    """Return an Ornstein-Uhlenbeck process."""
    kept = np.exp(-DT_S / constant_s)
    steps = random.normal(0, std * np.sqrt(1 - kept**2), count)
    steps[0] = random.normal(0, std)
    wandering: Floats = lfilter([1], [1, -kept], steps)
    return wandering


def _smooth(values: Floats, constant_s: float) -> Floats:
    """Return an exponential mean."""
    kept = np.exp(-DT_S / constant_s)
    smooth: Floats = lfilter([1 - kept], [1, -kept], values, zi=[kept * values[0]])[0]
    return smooth
