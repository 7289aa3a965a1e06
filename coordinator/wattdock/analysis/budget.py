"""The uncertainty budget of joules per output token: its schema and its computation. Pure.

The figure is that of the declared work by engines as old as in the windows, on settled boards. The mix of work of each
window is corrected by a common fit over all blocks, warmth by what other boards showed; the rest is an entry.
"""

from __future__ import annotations

from math import exp, hypot, isfinite, sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from wattdock.analysis.answers import DECLARED, Answers
from wattdock.analysis.block_fit import LEAST_BLOCKS, TEMPERATURE_COEFFICIENT, Fit, Window, fitted, slopes_of
from wattdock.analysis.statistics import (
    BETWEEN_SESSIONS,
    LEAST_RESTARTS,
    Figure,
    Interval,
    Restarts,
    effective_freedom,
    t_factor,
)
from wattdock.text import pluralize
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The same where the sign of the change of temperature is unknown: the root of the mean square.
TEMPERATURE_SENSITIVITY = hypot(*TEMPERATURE_COEFFICIENT)
# Time constant with which boards settle, and engines for all that is known, and its standard uncertainty: 30 to 120 s.
TIME_CONSTANT_S = (75.0, 26.0)
# Standard uncertainty of the remaining warming where no slope is known: up to 14 °C remain after a lead-in of 45 s.
UNKNOWN_WARMING_C = 8.0
# Standard uncertainty of the room's temperature.
ROOM_C = 1.5
# Excess of J/token at the start, the time constant of its decay, and what is left at least. Source: passes of 20 s on
# H100s: 0.5 to 1.4 % in the first, 0.1 to 0.2 % after 30 to 60 s.
START_EXCESS, START_DECAY_S, LEAST_START_EXCESS = 0.01, 15.0, 0.0005
# Standard deviation between boards of one model near the power limit and well below it; told, never part of the
# interval. The loads are mean watts ÷ the limit, from which and up to which they were measured: 644 to 694 and 480 to
# 550 of 700 W. Between them, and where the load is unknown, all comparisons pooled must do.
# Source: docs/measurements/data/boards.csv.
BOARDS, NEAR, BELOW, BOARDS_POOLED = (0.011, 0.049), 0.9, 0.8, 0.025
BOARDS_FOUND = (
    "comparisons of H200s and of H100s, 19 degrees of freedom: 1.1 % near the power limit, 4.9 % well below it, pooled "
    "2.5 %; `wattdock compare` pools several boards"
)
# Share of steady engines whose drift stays within what chance makes: as within three standard errors of many blocks.
WITHIN_CHANCE = 0.9973
NO_SLOPE = f"temperatures were not read throughout, in {LEAST_BLOCKS} blocks a window or more"
UNKNOWN_DRAW = "restarts send the same prompts, and windows of one block do not tell how their draw varies"
UNKNOWN_GAIN = "unknown unless the sensors were calibrated: 5 % and more between models of meters"


class Entry(Stored):
    """One source of uncertainty; all figures are relative.

    Attributes:
        correction: Already in the figure.
        kind: "A" from the spread of readings, "B" from other knowledge.
        degrees_of_freedom: Null for infinitely many.
        share: Of the figure's variance.
        found: Where it comes from, in words.
    """

    name: str
    correction: float = 0.0
    standard_uncertainty: float
    kind: Literal["A", "B"] = "B"
    distribution: Literal["normal", "t"] = "normal"
    degrees_of_freedom: float | None = None
    share: float = 0.0
    found: str


class NotIncluded(Stored):
    """What repetitions of this run on this board and day do not show, told apart: it is not in the interval.

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
        unit: What joules are divided by, in the plural: output tokens, but for a command.
        energy_per_unit_j: The same, corrected; null with the reason.
        standard_uncertainty: Relative.
        degrees_of_freedom: Effective ones (Welch, Satterthwaite); null for infinitely many.
        expanded: Half the 95 % interval, relative; null with the reason.
        per_restart: Corrected figure of each restart, J.
        answers_sketch: Of the entry "lengths of answers", as far as prompts make it, relative: the mean square of the
            difference of two results' sketches is the variance of their ratio by their lists; empty without the entry.
        drift_per_min: Relative change of J/token per minute within windows, beside mix and temperature; null where
            windows have too few blocks, or are whole runs.
        drift_chance_per_min: Largest change that chance makes.
    """

    # The entry of what scatters between restarts.
    RESTARTS: ClassVar = "restarts"
    # Entries that the audit reads.
    MIX: ClassVar = "mix of work"
    START: ClassVar = "first seconds"
    # The entry that all results of one session share.
    ROOM: ClassVar = "room"
    # The entry that two results on the same boards share in part.
    WARMTH: ClassVar = "warmth"
    # The entry of a list that all restarts send, which results that sent the same list share.
    PROMPTS: ClassVar = "same prompts"
    # The entry of answers' lengths where nothing declares them, which results that sent the same prompts share in part.
    ANSWERS: ClassVar = "lengths of answers"

    measured: float
    unit: str = "output tokens"
    # Results that were published before commands were measured have the other name.
    energy_per_unit_j: float = Field(validation_alias=AliasChoices("energy_per_unit_j", "energy_per_output_token_j"))
    standard_uncertainty: float | None = None
    degrees_of_freedom: float | None = None
    expanded: float | None = None
    interval: Interval | None = None
    entries: list[Entry] = Field(default_factory=list)
    not_included: list[NotIncluded] = Field(default_factory=list)
    per_restart: list[float] = Field(default_factory=list)
    answers_sketch: list[float] = Field(default_factory=list)
    drift_per_min: float | None = None
    drift_chance_per_min: float | None = None
    reason: str | None = None

    @property
    def figure(self) -> Figure:
        """Corrected joules per output token, with its interval."""
        return Figure(self.energy_per_unit_j, self.interval)

    @property
    def unshown(self) -> float:
        """Relative standard uncertainty that restarts do not show, and that results on other boards do not share."""
        own = (entry for entry in self.entries if entry.kind == "B" and entry.name != self.ROOM)
        return hypot(*(entry.standard_uncertainty for entry in own))

    def apart(self, other: Budget) -> float:
        """Return the standard uncertainty of the logarithm of two figures' ratio that restarts on one board hide.

        Each result fitted its own slopes of mix and temperature; both share what a degree costs and how boards settle,
        by as much as each was corrected. Without a correction the whole uncertainty of warmth is a result's own.
        """
        warmth = [entry for budget in (self, other) if (entry := budget.entry(self.WARMTH))]
        shared = hypot(TEMPERATURE_SENSITIVITY * TIME_CONSTANT_S[1] / TIME_CONSTANT_S[0], TEMPERATURE_COEFFICIENT[1])
        shared /= TEMPERATURE_COEFFICIENT[0]
        own = (sqrt(max(0.0, each.standard_uncertainty**2 - (shared * each.correction) ** 2)) for each in warmth)
        gap = shared * abs(sum(each.correction * (-1) ** at for at, each in enumerate(warmth)))
        return hypot(gap, *own, self.part(self.MIX), other.part(self.MIX))

    def entry(self, name: str) -> Entry | None:
        """Return the entry of this name."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def part(self, name: str) -> float:
        """Return the relative standard uncertainty of the entry of this name, 0 without it."""
        return entry.standard_uncertainty if (entry := self.entry(name)) else 0.0


def budget(
    restarts: Sequence[Sequence[Window]],
    *,
    boards: int = 1,
    limit_w: float | None = None,
    whole: bool = False,
    repeats: tuple[float, float] = (1, 1),
    answers: Answers = DECLARED,
) -> Budget:
    """Return the budget of the windows of each restart.

    Args:
        boards: GPUs of the machine on which it was measured; what other boards differ by is told.
        limit_w: Sum of their power limits, W; None where unknown.
        whole: Whether windows are whole runs: their figure is that of such runs, warm-up and all.
        answers: What the requests' answers tell of the declared work where nothing declares their lengths.
        repeats: By how much repeated prompts widen the variance of a window's mean, and beyond that of the mean of all.

    Source: JCGM 100:2008 (GUM), sections 4 and 5, G.4.
    """
    windows, (repeated, alike) = [window for restart in restarts for window in restart], repeats
    tokens = np.array([window.output_tokens for window in windows])
    shares, known = tokens / tokens.sum(), all(window.knows_warmth for window in windows)
    fit = fitted(windows, known=known)
    off = np.array([[window.off_by(kind) for kind in fit.kinds] for window in windows]).reshape(len(windows), -1)
    mean_c = np.array([window.mean_c if known else 0.0 for window in windows])
    remaining_c, uncertainty_c = _remaining_warming(windows, shares) if known else (0.0, UNKNOWN_WARMING_C)
    warmth = TEMPERATURE_COEFFICIENT[0] * (shares @ mean_c - mean_c + remaining_c)
    rates = np.array([window.total_j for window in windows]) / tokens
    number = np.repeat(np.arange(len(restarts)), [len(restart) for restart in restarts])
    weights = np.bincount(number, tokens)
    values = np.bincount(number, rates * (1 - off @ fit.slopes + warmth) * tokens) / weights
    within = np.sqrt(repeated * np.bincount(number, (fit.scatter * tokens) ** 2)) / weights
    of_restarts = Restarts(tuple((values * weights).tolist()), tuple(weights.tolist()))
    inside = hypot(*(weights / weights.sum() * within))
    free_blocks = np.bincount(number, [len(window.block_s) - 1 for window in windows])
    of_blocks = int(free_blocks.sum())
    entries = [
        _restarts_entry(of_restarts, inside, of_blocks),
        Entry(
            name=Budget.ROOM,
            standard_uncertainty=TEMPERATURE_SENSITIVITY * ROOM_C,
            found=f"a room within {ROOM_C:g} °C (standard deviation)",
        ),
        Entry(
            name="timing",
            standard_uncertainty=sum(window.timing_j for window in windows) / sum(window.total_j for window in windows),
            found="brackets of counter changes and the counters' lag at the windows' ends",
        ),
    ]
    sketch: list[float] = []
    if answers.mean_tokens and fit.kinds:
        error, sketch = answers.error(dict(zip(fit.kinds, fit.slopes.tolist(), strict=False)))
        entries += [
            Entry(
                name=Budget.ANSWERS,
                standard_uncertainty=error,
                kind="A",
                distribution="t",
                degrees_of_freedom=max(1, len(answers.signs) - 1),
                found=f"nothing declares them: those to {pluralize(len(answers.signs), 'prompt')} are a draw",
            )
        ] * bool(error)
    if alike > 1 and free_blocks.all():
        entries.append(
            Entry(
                name=Budget.PROMPTS,
                standard_uncertainty=sqrt(alike - 1) * inside,
                kind="A",
                distribution="t",
                degrees_of_freedom=of_blocks / len(within),
                found="restarts send the same prompts, which are a draw; from blocks within windows",
            )
        )
    if not whole:
        lead_in_s = min(window.lead_in_s for window in windows)
        entries[1:1] = [
            _mix_entry(fit, shares @ off, "all requests'" if answers.mean_tokens else "declared"),
            _warmth_entry(remaining_c, uncertainty_c, known=known),
            Entry(
                name=Budget.START,
                standard_uncertainty=max(LEAST_START_EXCESS, START_EXCESS * exp(-lead_in_s / START_DECAY_S)),
                found=f"{lead_in_s:.0f} s of work before the first window",
            ),
        ]
    found = _combined(float(shares @ rates), float(values @ weights / weights.sum()), entries, values)
    found.answers_sketch.extend(sketch)
    mean_w = sum(window.total_j for window in windows) / sum(float(window.block_s.sum()) for window in windows)
    found.not_included.append(_other_boards(boards, mean_w / limit_w if limit_w else None))
    if alike > 1 and not free_blocks.all():
        found.not_included.append(NotIncluded(name=Budget.PROMPTS, standard_uncertainty=None, found=UNKNOWN_DRAW))
    if not whole and min(len(window.block_s) for window in windows) >= LEAST_BLOCKS:
        drift, error, freedom = _drift(windows, shares, fit, known=known)
        left, change = hypot(drift, error) * TIME_CONSTANT_S[0], f"{drift * 60:+.2%} ± {error * 60:.2%} a minute"
        told = f"{change} within windows; so much is left of a change that fades with {TIME_CONSTANT_S[0]:g} s"
        found.not_included.append(NotIncluded(name="later minutes", standard_uncertainty=left, found=told))
        chance = t_factor(freedom, WITHIN_CHANCE) * error
        return found.model_copy(update={"drift_per_min": drift * 60, "drift_chance_per_min": chance * 60})
    return found


def _drift(windows: Sequence[Window], shares: Floats, fit: Fit, *, known: bool) -> tuple[float, float, int]:
    """Return what J/token changes by within windows per second, its standard error and degrees of freedom."""
    slopes, error, freedom = slopes_of(windows, shares, fit.residuals, fit.fitted_kinds)
    # Slopes that differ raise the error, but not t: of three slopes it is 19 standard errors, which hide any drift.
    if len(slopes) >= LEAST_RESTARTS:
        error = max(error, float(np.std(slopes, ddof=1)) / sqrt(len(slopes)))
    if known:
        warming, *_ = slopes_of(windows, shares, [window.block_c for window in windows])
        error = hypot(error, TEMPERATURE_COEFFICIENT[1] * float(shares @ warming))
    return float(shares @ slopes), error, freedom


def _remaining_warming(windows: Sequence[Window], shares: Floats) -> tuple[float, float]:
    """Return the temperature of the settled board less the windows' mean, and its standard uncertainty, °C.

    Source: what is left of an exponential approach is its slope times its time constant, at any instant; a line through
    a window has the slope at the window's middle (to 3 %). Its error is that of a linear regression, widened for
    autocorrelation.
    """
    slopes, error, _ = slopes_of(windows, shares, [window.block_c for window in windows])
    slope, (constant_s, uncertainty_s) = float(shares @ slopes), TIME_CONSTANT_S
    return max(0.0, slope) * constant_s, hypot(slope * uncertainty_s, error * constant_s)


def _mix_entry(fit: Fit, off: Floats, whose: str) -> Entry:
    """Return the entry for the mix of work, by how much each kind of `fit` is off its amount in the long run."""
    each = [
        f"{kind} per output token {abs(by) * 100:.2f} % {'above' if by > 0 else 'below'} {whose}; "
        f"J/token changes {slope:.2f} times as much"
        for kind, by, slope in zip(fit.kinds, off, fit.slopes, strict=False)
    ]
    return Entry(
        name=Budget.MIX,
        correction=float(-off @ fit.slopes),
        standard_uncertainty=sqrt(float(off @ fit.covariance @ off)),
        found="; ".join(each) or "no mix of work is declared, or none was reported",
    )


def _warmth_entry(remaining_c: float, uncertainty_c: float, *, known: bool) -> Entry:
    """Return the entry for how much warmer settled boards are than those measured."""
    per_c, error = TEMPERATURE_COEFFICIENT
    below = f"{remaining_c:.1f} ± {uncertainty_c:.1f} °C below a settled board"
    return Entry(
        name=Budget.WARMTH,
        correction=per_c * remaining_c,
        standard_uncertainty=hypot(TEMPERATURE_SENSITIVITY * uncertainty_c, error * remaining_c),
        found=f"{below}, {per_c * 100:.2f} ± {error * 100:.2f} % per °C" if known else NO_SLOPE,
    )


def _restarts_entry(restarts: Restarts, inside: float, of_blocks: int) -> Entry:
    """Return the entry for how restarts differ, which is never less than what scatters within them.

    Args:
        restarts: Their corrected joules and tokens.
        inside: Relative standard uncertainty of the figure from blocks within restarts.
        of_blocks: Degrees of freedom of the blocks about their windows' means.
    """
    count, deviation, between = len(restarts), restarts.deviation, restarts.relative_error
    spread = "" if deviation is None else f", standard deviation {deviation:.2%}"
    return Entry(
        name=Budget.RESTARTS,
        standard_uncertainty=max(between, inside),
        kind="A",
        distribution="t",
        degrees_of_freedom=of_blocks if inside > between else count - 1,
        found=f"{pluralize(count, 'restart')}{spread}; {inside:.2%} from blocks within them",
    )


def _other_boards(boards: int, load: float | None) -> NotIncluded:
    """Return by how much a figure of so many boards differs from the model's, at this share of the power limit."""
    near, below = BOARDS
    deviation = BOARDS_POOLED if load is None or BELOW < load < NEAR else near if load >= NEAR else below
    at = "" if load is None else f" at {load * 100:.0f} % of the power limit"
    found = f"{pluralize(boards, 'board')}{at}; {BOARDS_FOUND}"
    return NotIncluded(name="board", standard_uncertainty=deviation / sqrt(boards), found=found)


def _combined(measured: float, value: float, entries: Sequence[Entry], values: Floats) -> Budget:
    """Return the budget of these entries: the root of the sum of squares, and Student's t of its degrees of freedom."""
    variance = sum(entry.standard_uncertainty**2 for entry in entries)
    shared = [
        entry.model_copy(update={"share": entry.standard_uncertainty**2 / variance if variance else 0.0})
        for entry in entries
    ]
    found: dict[str, object] = {
        "measured": measured,
        "energy_per_unit_j": value,
        "entries": shared,
        "per_restart": values.tolist(),
        "not_included": [
            NotIncluded(name="sensor gain", standard_uncertainty=None, found=UNKNOWN_GAIN),
            NotIncluded(name="session", standard_uncertainty=BETWEEN_SESSIONS, found="one room, one day"),
        ],
    }
    if len(values) < LEAST_RESTARTS:
        return Budget(**found, reason=f"an interval needs {LEAST_RESTARTS} restarts; set repeats.restarts")
    if values.min() <= 0:
        return Budget(
            **found, reason="a restart's work was so far from the declared that its correction leaves no joules"
        )
    uncertainty = sqrt(variance)
    parts = [(entry.standard_uncertainty, entry.degrees_of_freedom) for entry in entries if entry.degrees_of_freedom]
    freedom = effective_freedom(uncertainty, parts)
    # Another entry raises the degrees of freedom, and must not make an interval narrower than what is known from few.
    expanded = max(part * t_factor(of_part) for part, of_part in (*parts, (uncertainty, freedom)))
    return Budget(
        **found,
        standard_uncertainty=uncertainty,
        degrees_of_freedom=freedom if isfinite(freedom) else None,
        expanded=expanded,
        interval=Interval.around(value, expanded),
    )
