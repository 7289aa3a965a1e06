"""Curves over GPU counts: speed-up, efficiency, Amdahl's serial share, and what costs least. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis import CONFIDENCE, difference, geometric_mean, welch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import Difference
    from wattdock.reports.scaling_points import Point, Setting

MIN_SIZES = 4
ONE = "one GPU"
MEAN_METHOD = "geometric means over restarts; 95 % intervals from Student's t on logarithms"
RATIO_METHOD = (
    "ratio of geometric means over restarts; 95 % interval from Welch's t of the difference of mean logarithms"
)
AMDAHL_METHOD = (
    "1/throughput = a + b/N by least squares over restarts; serial share a ÷ (a + b), error propagated linearly"
)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sets of restarts.

    Attributes:
        low, high: 95 % interval; None with fewer than two restarts on either side.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Ratio:
        """Return the ratio times an exact number."""
        ends = [None if end is None else end * factor for end in (self.low, self.high)]
        return Ratio(self.value * factor, *ends)


@dataclass(frozen=True)
class Scaled:
    """One point of a curve, beside the curve's first.

    Attributes:
        speed_up: Tokens per second ÷ those of the first.
        efficiency: Speed-up ÷ how many times as many GPUs.
        energy_ratio: Joules per token ÷ those of the first; None where energy was not measured.
    """

    point: Point
    speed_up: Ratio
    efficiency: Ratio
    energy_ratio: Ratio | None


@dataclass(frozen=True)
class Amdahl:
    """What part of the time does not shrink with GPUs.

    Attributes:
        serial_share: None where the fit was refused, with the reason.
        low, high: 95 % interval.
        worst_residual: Largest relative distance of a size's mean throughput from the fit.
    """

    serial_share: float | None
    low: float | None = None
    high: float | None = None
    worst_residual: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Curve:
    """One kind of split in one setting; it begins with one GPU where that was measured."""

    kind: str
    points: tuple[Scaled, ...]
    amdahl: Amdahl


@dataclass(frozen=True)
class Optimum:
    """The configuration with the fewest joules per token.

    Attributes:
        next_best: None where there is no other.
        difference: Of the next best from it; None with fewer than two restarts on either side.
    """

    point: Point
    next_best: Point | None
    difference: Difference | None


def curves(setting: Setting) -> list[Curve]:
    """Return one curve per kind of split, and none where only one GPU was measured."""
    first = [point for point in setting.points if point.kind == ONE]
    kinds = dict.fromkeys(point.kind for point in setting.points if point.kind != ONE)
    return [_curve(kind, [*first, *(point for point in setting.points if point.kind == kind)]) for kind in kinds]


def _curve(kind: str, points: Sequence[Point]) -> Curve:
    base = points[0]
    return Curve(kind, tuple(_scaled(point, base) for point in points), amdahl(points))


def _scaled(point: Point, base: Point) -> Scaled:
    speed_up = Ratio(1.0) if point is base else ratio(point.tokens_per_s, base.tokens_per_s)
    energy = None
    if point.j_per_token and base.j_per_token:
        energy = Ratio(1.0) if point is base else ratio(point.j_per_token, base.j_per_token)
    return Scaled(point, speed_up, speed_up.times(base.gpus / point.gpus), energy)


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Return the ratio of two sets of independent positive restart values; without interval from a single one."""
    if min(len(over), len(under)) < 2:
        return Ratio(exp(float(np.mean(np.log(over)) - np.mean(np.log(under)))))
    found = welch(under, over)
    low, high = found.interval(CONFIDENCE)
    return Ratio(exp(found.estimate), exp(low), exp(high))


def amdahl(points: Sequence[Point]) -> Amdahl:
    """Fit Amdahl's law to one kind of split, if there are enough sizes.

    Source: Amdahl, AFIPS 30, 1967: the time of N processors is serial + parallel ÷ N.
    """
    from scipy.special import stdtrit

    if any(point.is_weak for point in points):
        return Amdahl(None, reason="the work grows with the GPUs, and Amdahl's law is of the same work")
    sizes = sorted({point.gpus for point in points})
    if len(sizes) < MIN_SIZES:
        counted = ", ".join(map(str, sizes))
        return Amdahl(None, reason=f"{len(sizes)} GPU counts ({counted}); a fit needs at least {MIN_SIZES}")
    x = np.array([1 / point.gpus for point in points for _ in point.tokens_per_s])
    y = np.array([1 / value for point in points for value in point.tokens_per_s])
    (parallel, serial), covariance = np.polyfit(x, y, 1, cov=True)
    freedom = len(y) - 2
    # Of a ÷ (a + b), by b and a.
    slope = np.array([-serial, parallel]) / (serial + parallel) ** 2
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * sqrt(float(slope @ covariance @ slope))
    share = float(serial / (serial + parallel))
    residuals = [abs(np.mean(point.tokens_per_s) * (serial + parallel / point.gpus) - 1) for point in points]
    return Amdahl(share, share - half, share + half, float(max(residuals)))


def optimum(points: Sequence[Point]) -> Optimum | None:
    """Return the point with the fewest joules per token; None where energy was not measured."""
    known = sorted((one for one in points if one.j_per_token), key=lambda one: geometric_mean(one.j_per_token))
    if not known:
        return None
    if len(known) == 1:
        return Optimum(known[0], None, None)
    best, other = known[:2]
    enough = min(len(best.j_per_token), len(other.j_per_token)) > 1
    return Optimum(best, other, difference(best.j_per_token, other.j_per_token) if enough else None)
