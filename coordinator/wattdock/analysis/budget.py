"""The uncertainty budget of joules per output token: its schema and its computation. Pure.

The figure is that of the declared work in the long run, at settled temperature. What each window differs in from that
(mix of work, warmth) is corrected by what a common fit over all blocks finds; what remains is an entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, sqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field

from wattdock.analysis.statistics import LEAST_RESTARTS, Interval, t_factor
from wattdock.text import pluralize
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Kinds of work in which a window's mix may differ from the declared one.
PROMPTS, CONTEXT, SECONDS = "prompt tokens", "context tokens", "seconds"
# Prior share of the joules that grows with each kind, and its standard uncertainty: the first and last are those of a
# share anywhere from none to all; contexts never cost all.
SHARES = {PROMPTS: (0.5, 0.29), CONTEXT: (0.25, 0.25), SECONDS: (0.5, 0.29)}
# Relative change of J/token per °C, and its standard uncertainty. Source: 60 passes on an H100, 0.054 ± 0.013 % per °C.
PER_C = (0.0006, 0.0005)
# Temperature still to come ÷ its present slope: the time constant of a board lies between 0 and this.
MAX_SETTLING_S = 150.0
# Last part of a window, whose slope of temperature is taken.
END_S = 20.0
# Standard uncertainty of a board's temperature where none is read, and of the room's.
UNREAD_C, ROOM_C = 6.0, 1.5
# What the first second costs more than later ones, how fast that decays, and what is left at least. Source: passes of
# 20 s on H100s: 0.5 to 1.4 % in the first, 0.1 to 0.2 % after 30 to 60 s.
FIRST_EXCESS, FIRST_DECAY_S, FIRST_LEAST = 0.01, 15.0, 0.0005
# Standard deviations between boards of one model and between days; told, never part of the interval. Sources: eight
# H100s under about the same settings; arms measured on different days.
BOARDS, SESSIONS = 0.012, 0.003
# Largest autocorrelation that is believed, and fewest blocks whose scatter tells anything.
MAX_CORRELATION, MIN_BLOCKS = 0.9, 4
UNKNOWN_GAIN = "unknown unless the sensors were calibrated: 5 % and more between models of meters"


@dataclass(frozen=True)
class Window:
    """One measured window, and its blocks of about 2 s.

    Attributes:
        total_j, output_tokens, timing_j: Of the whole window.
        lead_in_s: From the first request to the window.
        block_s, block_j, block_tokens: Of each block; shape (n,).
        work: Amounts of each kind of work in each block; shape (n,) each.
        block_c: Mean temperature of the GPUs used; NaN where unknown; shape (n,).
        declared: Amount of each kind per output token in the long run; a kind that is missing is not declared.
    """

    total_j: float
    output_tokens: float
    timing_j: float
    lead_in_s: float
    block_s: Floats
    block_j: Floats
    block_tokens: Floats
    block_c: Floats
    work: Mapping[str, Floats] = field(default_factory=dict)
    declared: Mapping[str, float] = field(default_factory=dict)

    def off_by(self, kind: str) -> float:
        """Return (amount per output token) ÷ (declared amount) − 1."""
        return float(self.work[kind].sum() / self.block_tokens.sum()) / self.declared[kind] - 1

    @property
    def warming(self) -> tuple[float, float, float]:
        """Temperature of the settled board less the window's mean, its uncertainty, and the slope, °C and °C/s."""
        ends_s = np.cumsum(self.block_s)
        middles_s = ends_s - self.block_s / 2
        late = middles_s >= ends_s[-1] - END_S
        slope, _ = np.polyfit(middles_s[late], self.block_c[late], 1) if late.sum() > 1 else (0.0, 0.0)
        end_c = float(np.mean(self.block_c[late]) + slope * (ends_s[-1] - np.mean(middles_s[late])))
        to_come_c, slope = max(0.0, float(slope)) * MAX_SETTLING_S / 2, float(slope)
        mean_c = float(np.average(self.block_c, weights=self.block_tokens))
        return end_c + to_come_c - mean_c, to_come_c / sqrt(3), slope


class Entry(Stored):
    """One source of uncertainty; all figures are relative.

    Attributes:
        correction: Already in the figure.
        kind: "A" from the spread of readings, "B" from other knowledge.
        freedom: Degrees of freedom; null for infinitely many.
        share: Of the figure's variance.
        found: Where it comes from, in words.
    """

    name: str
    correction: float = 0.0
    standard_uncertainty: float
    kind: Literal["A", "B"] = "B"
    distribution: Literal["normal", "rectangular", "t"] = "normal"
    freedom: float | None = None
    share: float = 0.0
    found: str


class NotIncluded(Stored):
    """What no repetition on this board and day can show, told apart: it is not in the interval.

    Attributes:
        standard_uncertainty: Relative; null where unknown.
    """

    name: str
    standard_uncertainty: float | None
    found: str


class Budget(Stored):
    """Joules per output token of the declared work, with everything that makes it uncertain.

    Attributes:
        measured: Joules ÷ tokens of all windows, J.
        energy_per_output_token_j: The same, corrected; null with the reason.
        standard_uncertainty: Relative.
        freedom: Effective degrees of freedom (Welch, Satterthwaite); null for infinitely many.
        expanded: Half the 95 % interval, relative; null with the reason.
        per_restart: Corrected figure of each restart, J.
    """

    measured: float
    energy_per_output_token_j: float
    standard_uncertainty: float | None = None
    freedom: float | None = None
    expanded: float | None = None
    interval: Interval | None = None
    entries: list[Entry] = Field(default_factory=list)
    not_included: list[NotIncluded] = Field(default_factory=list)
    per_restart: list[float] = Field(default_factory=list)
    reason: str | None = None

    def entry(self, name: str) -> Entry | None:
        """Return the entry of this name."""
        return next((entry for entry in self.entries if entry.name == name), None)


class _Fit(NamedTuple):
    """What J/token depends on within windows.

    Attributes:
        kinds: Kinds of work that were declared and reported.
        slopes: Relative change of J/token per relative change of each kind, then per °C; shape (k + 1,).
        covariance: Of the slopes; shape (k + 1, k + 1).
        scatter: Relative standard uncertainty of each window's mean, from its blocks; shape (windows,).
    """

    kinds: tuple[str, ...]
    slopes: Floats
    covariance: Floats
    scatter: Floats


def budget(restarts: Sequence[Sequence[Window]], *, boards: int = 1) -> Budget:
    """Return the budget of the windows of each restart.

    Args:
        boards: GPUs of the machine on which it was measured; what other boards differ by is told.

    Source: JCGM 100:2008 (GUM), sections 4 and 5, G.4.
    """
    windows = [window for restart in restarts for window in restart]
    fit = _fitted(windows)
    tokens = np.array([window.output_tokens for window in windows])
    shares = tokens / tokens.sum()
    measured = sum(window.total_j for window in windows) / float(tokens.sum())
    off = np.array([[window.off_by(kind) for kind in fit.kinds] for window in windows]).reshape(len(windows), -1)
    mix = -off @ fit.slopes[:-1]
    warm_c, warm_u_c, known = _warmth(windows)
    warmth = fit.slopes[-1] * warm_c
    corrected = np.array([window.total_j / window.output_tokens for window in windows]) * (1 + mix + warmth)
    number = np.repeat(np.arange(len(restarts)), [len(restart) for restart in restarts])
    weights = np.bincount(number, tokens)
    values = np.bincount(number, corrected * tokens) / weights
    value = float(values @ weights / weights.sum())
    mean_off, mean_c = shares @ off, float(shares @ warm_c)
    u_mix = sqrt(float(mean_off @ fit.covariance[:-1, :-1] @ mean_off))
    u_warmth = np.hypot(fit.slopes[-1] * float(shares @ warm_u_c), sqrt(fit.covariance[-1, -1]) * mean_c)
    lead_in_s = min(window.lead_in_s for window in windows)
    first = max(FIRST_LEAST, FIRST_EXCESS * exp(-lead_in_s / FIRST_DECAY_S))
    total_j, timing_j = (sum(getattr(window, name) for window in windows) for name in ("total_j", "timing_j"))
    entries = [
        _restarts_entry(values, np.sqrt(np.bincount(number, (fit.scatter * tokens) ** 2)) / weights),
        Entry(
            name="mix of work",
            correction=float(shares @ mix),
            standard_uncertainty=u_mix,
            found="; ".join(
                f"{kind} per output token {by:+.2%} off, {slope:.2f} of J/token follows"
                for kind, by, slope in zip(fit.kinds, mean_off, fit.slopes, strict=False)
            )
            or "no mix is declared, or the engine does not report it",
        ),
        Entry(
            name="warmth",
            correction=float(shares @ warmth),
            standard_uncertainty=float(u_warmth),
            distribution="rectangular",
            found=f"{mean_c:+.1f} °C to a settled board, {fit.slopes[-1]:+.3%} per °C"
            if known
            else "temperatures were not read throughout",
        ),
        Entry(
            name="room",
            standard_uncertainty=abs(float(fit.slopes[-1])) * ROOM_C,
            found=f"a room within {ROOM_C:g} °C (standard deviation)",
        ),
        Entry(name="first seconds", standard_uncertainty=first, found=f"{lead_in_s:.0f} s before the first window"),
        Entry(
            name="timing",
            standard_uncertainty=timing_j / total_j,
            found="brackets of counter changes and the counters' lag at the windows' ends",
        ),
    ]
    return _combined(measured, value, entries, values, boards)


def _restarts_entry(values: Floats, within: Floats) -> Entry:
    """Return the entry for how restarts differ, which is never less than what scatters within them.

    Args:
        values: J/token of each restart.
        within: Relative standard uncertainty of each from its own blocks.
    """
    count = len(values)
    between = float(np.std(np.log(values), ddof=1)) / sqrt(count) if count > 1 else 0.0
    inside = sqrt(float(within @ within)) / count
    spread = f", standard deviation {between * sqrt(count):.2%}" if count > 1 else ""
    return Entry(
        name="restarts",
        standard_uncertainty=max(between, inside),
        kind="A",
        distribution="t",
        freedom=max(count - 1, 0),
        found=f"{pluralize(count, 'restart')}{spread}; {inside:.2%} from blocks within them",
    )


def _combined(measured: float, value: float, entries: Sequence[Entry], values: Floats, boards: int) -> Budget:
    """Return the budget of these entries: the root of the sum of squares, and Student's t of its degrees of freedom."""
    variance = sum(entry.standard_uncertainty**2 for entry in entries)
    shared = [
        entry.model_copy(update={"share": entry.standard_uncertainty**2 / variance if variance else 0.0})
        for entry in entries
    ]
    found: dict[str, object] = {
        "measured": measured,
        "energy_per_output_token_j": value,
        "entries": shared,
        "per_restart": values.tolist(),
        "not_included": [
            NotIncluded(name="sensor gain", standard_uncertainty=None, found=UNKNOWN_GAIN),
            NotIncluded(
                name="board",
                standard_uncertainty=BOARDS / sqrt(boards),
                found=f"{pluralize(boards, 'board')} of the model; `wattdock compare` pools results of several",
            ),
            NotIncluded(name="session", standard_uncertainty=SESSIONS, found="one room, one day"),
        ],
    }
    if len(values) < LEAST_RESTARTS:
        few = f"{pluralize(len(values), 'restart')}: too few for an interval, {LEAST_RESTARTS} are the least"
        return Budget(**found, reason=f"{few}; set repeats.restarts")
    uncertainty = sqrt(variance)
    parts = [entry.standard_uncertainty**4 / entry.freedom for entry in entries if entry.freedom]
    freedom = uncertainty**4 / sum(parts) if sum(parts) else None
    expanded = uncertainty * t_factor(min(freedom or 1e6, 1e6))
    return Budget(
        **found,
        standard_uncertainty=uncertainty,
        freedom=freedom,
        expanded=expanded,
        interval=Interval(value * exp(-expanded), value * exp(expanded)),
    )


def _warmth(windows: Sequence[Window]) -> tuple[Floats, Floats, bool]:
    """Return how much warmer each settled board is than it was, with the uncertainty, °C, and whether that is read."""
    if not all(np.isfinite(window.block_c).all() for window in windows):
        return np.zeros(len(windows)), np.full(len(windows), UNREAD_C), False
    to_settled_c, uncertainty_c, _ = np.array([window.warming for window in windows]).T
    return to_settled_c, uncertainty_c, True


def _fitted(windows: Sequence[Window]) -> _Fit:
    """Fit J/token of blocks, about each window's own mean, to their mix and temperature, from a prior on each slope.

    Blocks weigh as many tokens as they hold. What is left scatters with an autocorrelation that widens everything.

    Source: linear regression with normal priors (ridge); effective size of a series, (1 − ρ) ÷ (1 + ρ).
    """
    kinds = tuple(kind for kind in SHARES if all(kind in window.declared and kind in window.work for window in windows))
    priors = np.array([*(SHARES[kind] for kind in kinds), PER_C])
    columns, sizes = [], []
    for window in windows:
        rate = window.block_j / window.block_tokens
        mean = window.block_j.sum() / window.block_tokens.sum()
        work = [window.work[kind] / window.block_tokens / window.declared[kind] for kind in kinds]
        celsius = np.where(np.isfinite(window.block_c), window.block_c, np.nanmean([0.0, *window.block_c]))
        weight = window.block_tokens / window.block_tokens.mean()
        about = [part - np.average(part, weights=weight) for part in (*work, celsius, rate / mean)]
        columns.append(np.column_stack(about) * np.sqrt(weight)[:, None])
        sizes.append(len(rate))
    stacked = np.concatenate(columns)
    slopes, covariance = priors[:, 0], np.diag(priors[:, 1] ** 2)
    residuals = stacked[:, -1] - stacked[:, :-1] @ slopes
    freedom = max(1, len(stacked) - len(windows) - len(priors))
    if len(stacked) - len(windows) >= MIN_BLOCKS:
        for _ in range(3):
            parts = np.split(residuals, np.cumsum(sizes)[:-1])
            noise = float(residuals @ residuals) / freedom * _inflation(parts) + np.finfo(float).tiny
            precision = stacked[:, :-1].T @ stacked[:, :-1] / noise + np.diag(priors[:, 1] ** -2.0)
            covariance = np.linalg.inv(precision)
            pulled = stacked[:, :-1].T @ stacked[:, -1] / noise + priors[:, 0] / priors[:, 1] ** 2
            slopes = covariance @ pulled
            residuals = stacked[:, -1] - stacked[:, :-1] @ slopes
    parts = np.split(residuals, np.cumsum(sizes)[:-1])
    inflation = _inflation(parts)
    scatter = [sqrt(float(part @ part) / max(1, len(part) - 1) / len(part) * inflation) for part in parts]
    return _Fit(kinds, slopes, covariance, np.array(scatter))


def _inflation(parts: Sequence[Floats]) -> float:
    """Return by how much the autocorrelation of neighbouring blocks widens the variance of a mean; 1 or more."""
    products = sum(float(part[1:] @ part[:-1]) for part in parts)
    squares = sum(float(part @ part) for part in parts)
    correlation = min(max(products / squares if squares else 0.0, 0.0), MAX_CORRELATION)
    return (1 + correlation) / (1 - correlation)
