"""Simulated engines whose joules per output token in the long run are known, and the windows that a study would see.

A world is drawn from its kind. An engine takes the same steps whatever its speed, so lengths are drawn first, then the
course of time, warmth and energy over the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from seams.analysis import CONTEXT, PROMPTS, ROOM_C, SECONDS, TEMPERATURE_COEFFICIENT, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Floats = NDArray[np.float64]

LAUNCH_S, LEAD_IN_S, WINDOW_S, BLOCK_S, PAUSE_S = 70.0, 45.0, 40.0, 2.0, 5.0
# Seconds of a step, and joules: each step's, per prompt token, per output token, per token of context.
STEP_S, STEP_J = (5e-3, 2.5e-5, 5e-5, 3e-8), (1.6, 0.015, 0.03, 2e-5)
# By which the instants of the counter's readings are wrong, s.
EDGE_S = 0.004


def _lengths(mean: float, deviation: float, least: int, most: int) -> Floats:
    """Return equally likely lengths, log-normal before they are cut off."""
    sigma2 = log(1 + (deviation / mean) ** 2)
    normal: Floats = ndtri((np.arange(4096) + 0.5) / 4096)
    lengths: Floats = np.round(np.clip(np.exp(log(mean) - sigma2 / 2 + sqrt(sigma2) * normal), least, most))
    return lengths


PEOPLE = (_lengths(512, 600, 8, 4096), _lengths(256, 200, 1, 1024))
FIXED = (np.array([512.0]), np.array([256.0]))
LONG_ANSWERS = (PEOPLE[0], _lengths(2048, 1600, 1, 8192))
# Prompts of 6,000 tokens, 16 to be answered; what was sent shortened some of these answers: 2.3 % fewer in all.
LONG, SHORTENED = (np.array([6000.0]), np.array([16.0])), (np.array([6000.0]), np.r_[[16.0] * 320, np.arange(1, 17)])


class Steps(NamedTuple):
    """Prompt tokens, output tokens and tokens of context of each step."""

    prompts: Floats
    active: Floats
    context: Floats


@dataclass(frozen=True)
class World:
    """A stationary engine on a board, in a room, beside others on its host.

    Attributes:
        declared, sent: Equally likely lengths of prompts, and of answers.
        rate_per_s: Of arrivals; none where a fixed number is in flight.
        is_batch: Whether all in flight begin together.
        joules: As `STEP_J`.
        static_w: Beside these joules, whatever is done.
        per_c: Relative change of J/token per °C.
        warming_c, settling_s: By how much the board warms from a restart's begin, and the time constant.
        overshoot, overshoot_s: Relative excess at the begin, and its time constant.
        room_c, room_s: Peak to peak, and period.
        stalls: Share of the steps, how many in a row, and by how much of itself each is longer.
        noise, noise_s: Relative standard deviation of each second, and how long it lasts.
        tail: Standard deviation of restarts, and degrees of freedom of Student's t.
        follows_c, follows_s: Standard deviation of readings that follow the board's power, and within what time.
        windows: In each restart.
        has_sensor: Whether temperatures are read.
        tells: Kinds of work that are declared.
    """

    in_flight: int
    joules: tuple[float, float, float, float]
    static_w: float
    per_c: float
    overshoot: float
    overshoot_s: float
    noise: float
    tail: tuple[float, float]
    warming_c: float
    settling_s: float
    declared: tuple[Floats, Floats] = FIXED
    sent: tuple[Floats, Floats] | None = None
    rate_per_s: float | None = None
    is_batch: bool = False
    room_c: float = 0.0
    room_s: float = 600.0
    stalls: tuple[float, float, float] = (0.0, 1.0, 0.0)
    noise_s: float = 0.0
    follows_c: float = 0.0
    follows_s: int = 3
    windows: int = 1
    has_sensor: bool = True
    tells: tuple[str, ...] = (PROMPTS, CONTEXT)

    @property
    def per_token(self) -> dict[str, float]:
        """Amounts of work per output token that are declared, all of them."""
        prompts, answers = self.declared
        context = prompts.mean() + (answers * (answers - 1)).mean() / 2 / answers.mean()
        amounts = {PROMPTS: prompts.mean() / answers.mean(), CONTEXT: float(context)}
        return amounts | ({SECONDS: 1 / self.rate_per_s / answers.mean()} if self.rate_per_s else {})

    @property
    def step(self) -> tuple[float, float, float, float]:
        """One, prompt tokens, output tokens and tokens of context of a step in the long run."""
        answers = self.declared[1].mean()
        active = self.rate_per_s * answers * STEP_S[0] * 2 if self.rate_per_s else float(self.in_flight)
        return 1.0, active * self.per_token[PROMPTS], active, active * self.per_token[CONTEXT]

    @property
    def step_s(self) -> float:
        """Mean length of a step."""
        if self.rate_per_s:
            return STEP_S[0] * 2
        return float(np.dot(self.step, STEP_S)) * (1 + self.stalls[0] * self.stalls[2])

    @property
    def true_j(self) -> float:
        """Joules per output token in the long run at settled temperature."""
        return (float(np.dot(self.step, self.joules)) + self.static_w * self.step_s) / self.step[2]

    def restarts(self, random: np.random.Generator, count: int) -> tuple[list[list[Window]], float]:
        """Return the windows of so many restarts, and the minutes that they took."""
        lifetime_s = float(self.declared[1].mean()) * self.step_s
        lead_in_s, window_s = max(LEAD_IN_S, 2 * lifetime_s), max(WINDOW_S, 5 * lifetime_s)
        run_s = lead_in_s + self.windows * (window_s + PAUSE_S)
        phase = random.uniform(0, 2 * np.pi)
        found = []
        for number in range(count):
            at_s = number * (LAUNCH_S + run_s)
            found.append(self._restart(random, lead_in_s, window_s, run_s, phase + 2 * np.pi * at_s / self.room_s))
        return found, count * (LAUNCH_S + run_s - PAUSE_S) / 60

    def _restart(
        self, random: np.random.Generator, lead_in_s: float, window_s: float, run_s: float, phase: float
    ) -> list[Window]:
        steps = self._steps(random, int(1.25 * run_s / self.step_s) + 300)
        count = len(steps.active)
        work = np.column_stack((np.ones(count), *steps))
        lengths_s = np.full(count, self.step_s) if self.rate_per_s else work @ STEP_S
        stalled = _bursts(random, count, *self.stalls[:2])
        lengths_s = lengths_s * (1 + self.stalls[2] * stalled)
        ends_s = np.cumsum(lengths_s)
        seconds = np.arange(int(ends_s[-1]) + 2)
        room_c = self.room_c / 2 * np.sin(phase + 2 * np.pi * seconds / self.room_s)
        celsius = 60 + room_c - self.warming_c * np.exp(-seconds / self.settling_s)
        factor = 1 + self.per_c * (celsius - 60) + self.overshoot * np.exp(-seconds / self.overshoot_s)
        factor += self._noise(random, len(seconds))
        deviation, freedom = self.tail
        factor *= 1 + deviation * random.standard_t(freedom) / sqrt(freedom / (freedom - 2))
        spent_j = (work @ self.joules + self.static_w * lengths_s) * np.interp(ends_s, seconds, factor)
        totals = np.column_stack((ends_s, np.cumsum(spent_j), *np.cumsum(work[:, 1:], axis=0).T))
        power_w = np.diff(np.interp(np.r_[0, seconds + 1], ends_s, totals[:, 1]))
        power_w = np.convolve(power_w, np.ones(self.follows_s) / self.follows_s)[: len(seconds)]
        # The first and the last seconds are not full.
        of_load = (power_w - power_w[10:-10].mean()) / power_w[10:-10].std()
        read_c = np.round(celsius + self.follows_c * of_load) if self.has_sensor else np.full(len(seconds), np.nan)
        return [
            self._window(random, totals, read_c, lead_in_s + number * (window_s + PAUSE_S), window_s)
            for number in range(self.windows)
        ]

    def _steps(self, random: np.random.Generator, count: int) -> Steps:
        """Return the work of so many steps, of requests whose lengths are drawn."""
        prompts, answers = self.sent or self.declared
        if self.rate_per_s:
            arrivals = random.poisson(self.rate_per_s * self.step_s, count)
            starts = np.repeat(np.arange(count), arrivals)
            outputs = random.choice(answers, len(starts)).astype(int)
        else:
            drawn = random.choice(answers, (self.in_flight, int(1.5 * count / answers.mean()) + 40)).astype(int)
            # The first are under way, so that what is in flight is out of step.
            if not self.is_batch:
                drawn[:, 0] = np.ceil(drawn[:, 0] * random.random(self.in_flight))
            ends = np.cumsum(drawn, axis=1)
            starts, outputs = (ends - drawn).ravel(), drawn.ravel()
            starts, outputs = starts[starts < count], outputs[starts < count]
        inputs = random.choice(prompts, len(starts))
        ends = starts + outputs
        inside = ends < count
        prompted = np.bincount(starts, inputs, count).astype(float)
        changes = np.bincount(starts, minlength=count) - np.bincount(ends[inside], minlength=count)
        active: Floats = np.cumsum(changes).astype(float)
        left = np.bincount(ends[inside], (inputs + outputs)[inside], count)
        # Each token that is made is read from the next step on.
        context: Floats = np.cumsum(prompted - left + np.r_[0, active[:-1]])
        return Steps(prompted, active, context)

    def _noise(self, random: np.random.Generator, count: int) -> Floats:
        white = random.normal(0, self.noise, count)
        if not self.noise_s:
            return white
        kept = np.exp(-1 / self.noise_s)
        for at in range(1, count):
            white[at] = kept * white[at - 1] + sqrt(1 - kept**2) * white[at]
        return white

    def _window(
        self, random: np.random.Generator, totals: Floats, read_c: Floats, begin_s: float, window_s: float
    ) -> Window:
        """Return the window that begins here, cut where a step ends, or a whole round."""
        ends_s = totals[:, 0]
        if self.is_batch:
            rounds = np.flatnonzero(totals[1:, 2] > totals[:-1, 2])
            begins = rounds[(ends_s[rounds] >= begin_s) & (ends_s[rounds] <= begin_s + window_s + 3)]
        else:
            begins = np.searchsorted(ends_s, np.arange(begin_s, begin_s + window_s + 0.1, BLOCK_S))
            begins = np.unique(begins)
        edges = totals[begins].copy()
        power_w = (edges[-1, 1] - edges[0, 1]) / (edges[-1, 0] - edges[0, 0])
        edges[:, 1] += power_w * random.normal(0, EDGE_S, len(edges))
        block_s, block_j, prompts, tokens, context = np.diff(edges, axis=0).T
        second = edges[:, 0].astype(int)
        read = [read_c[start : max(end, start + 1)].mean() for start, end in pairwise(second)]
        work = {PROMPTS: prompts, CONTEXT: context, SECONDS: block_s}
        return Window(
            total_j=float(block_j.sum()),
            output_tokens=float(tokens.sum()),
            timing_j=float(power_w) * EDGE_S * sqrt(2),
            lead_in_s=begin_s,
            block_s=block_s,
            block_j=block_j,
            block_tokens=tokens,
            block_c=np.array(read),
            work=work,
            declared={kind: self.per_token[kind] for kind in self.tells},
        )


def _bursts(random: np.random.Generator, count: int, share: float, length: float) -> NDArray[np.bool_]:
    """Return which steps stall: this share, in bursts of this many on average."""
    if not share:
        return np.zeros(count, bool)
    # As likely to stall at the begin as ever.
    is_burst, drawn = random.random() < share, list[NDArray[np.bool_]]()
    while sum(map(len, drawn)) < count:
        mean = length if is_burst else length * (1 - share) / share
        drawn.append(np.full(random.geometric(1 / mean), is_burst))
        is_burst = not is_burst
    return np.concatenate(drawn)[:count]


def _quiet(random: np.random.Generator) -> World:
    step_j, prompt_j, token_j, context_j = STEP_J
    return World(
        in_flight=int(random.choice([8, 64])),
        joules=(
            step_j * random.uniform(0.6, 1.5),
            prompt_j * random.uniform(0.5, 2),
            token_j,
            context_j * random.uniform(0.3, 3),
        ),
        static_w=random.uniform(120, 250),
        per_c=random.uniform(0.0003, 0.0009),
        # 0.5 to 1.4 % more in the first 15 s.
        overshoot=random.uniform(0.005, 0.014) * 1.8,
        overshoot_s=random.uniform(6, 12),
        noise=random.uniform(0.002, 0.006),
        tail=(random.uniform(0.0005, 0.002), 1000),
        warming_c=random.uniform(1, 4),
        settling_s=random.uniform(30, 60),
    )


def _warm(random: np.random.Generator) -> dict[str, Any]:
    return {"warming_c": random.uniform(8, 25), "settling_s": random.uniform(30, 120)}


def _following(random: np.random.Generator) -> dict[str, Any]:
    return {"declared": PEOPLE, "follows_c": random.uniform(1.7, 2.2)}


def _stalls(random: np.random.Generator) -> dict[str, Any]:
    return {"stalls": (random.uniform(0.02, 0.12), random.uniform(20, 150), random.uniform(0.2, 1.0))}


def _room(random: np.random.Generator) -> dict[str, Any]:
    return {"room_c": random.uniform(2, 6), "room_s": random.uniform(300, 3600)}


def _heavy(random: np.random.Generator) -> dict[str, Any]:
    return {"tail": (random.uniform(0.001, 0.004), 3)}


def _mixed(random: np.random.Generator) -> dict[str, Any]:
    return _warm(random) | _stalls(random) | _room(random) | _heavy(random)


def _people(random: np.random.Generator) -> dict[str, Any]:
    return _warm(random) | _heavy(random) | {"declared": PEOPLE}


def _believed(random: np.random.Generator) -> dict[str, Any]:
    """Return a world in which temperatures lie where the budget supposes, the room all day."""
    (per_c, deviation), room_c = TEMPERATURE_COEFFICIENT, 2 * sqrt(2) * ROOM_C
    return _warm(random) | {"per_c": random.normal(per_c, deviation), "room_c": room_c, "room_s": 1e7}


def _longer(lengths: tuple[Floats, Floats], prompts: float, answers: float) -> tuple[Floats, Floats]:
    return np.round(lengths[0] * prompts), np.round(lengths[1] * answers)


# Kind of world → what differs from a quiet one.
KINDS: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "as believed": _believed,
    "quiet": lambda _: {},
    "warm": _warm,
    "stalls": _stalls,
    "room": _room,
    "heavy": _heavy,
    "mixed": _mixed,
    "people, 8": lambda random: _people(random) | {"in_flight": 8},
    "people, 64": lambda random: _people(random) | {"in_flight": 64},
    "people, 8, no contexts": lambda random: _people(random) | {"in_flight": 8, "tells": (PROMPTS,)},
    "people, 64, no contexts": lambda random: _people(random) | {"in_flight": 64, "tells": (PROMPTS,)},
    "people, mixed": lambda random: _mixed(random) | {"declared": PEOPLE},
    "prompts off": lambda random: _people(random) | {"sent": _longer(PEOPLE, 1.02, 1)},
    "prompts off, no contexts": lambda random: (
        _people(random) | {"sent": _longer(PEOPLE, 1.02, 1), "tells": (PROMPTS,)}
    ),
    "answers off": lambda random: _people(random) | {"sent": _longer(PEOPLE, 1, 1.02)},
    "answers off, no contexts": lambda random: (
        _people(random) | {"sent": _longer(PEOPLE, 1, 1.02), "tells": (PROMPTS,)}
    ),
    "long answers": lambda random: _people(random) | {"declared": LONG_ANSWERS, "in_flight": 64},
    "long answers, no contexts": lambda random: (
        _people(random) | {"declared": LONG_ANSWERS, "in_flight": 64, "tells": (PROMPTS,)}
    ),
    "shortened": lambda random: _warm(random) | {"declared": LONG, "sent": SHORTENED},
    "slow noise": lambda random: _warm(random) | {"noise_s": 10.0},
    "sensor noise": lambda random: _following(random) | {"warming_c": 0.0},
    "sensor noise, warm": lambda random: _warm(random) | _following(random),
    "no sensor": lambda random: _warm(random) | {"has_sensor": False},
    "two windows": lambda random: _mixed(random) | {"windows": 2},
    "rare stalls": lambda random: {"stalls": (random.uniform(0.01, 0.05), random.uniform(200, 600), 1.0)},
    "batches": lambda random: _warm(random) | {"is_batch": True},
    "batches off": lambda random: _warm(random) | {"is_batch": True, "sent": _longer(FIXED, 1.02, 1)},
    "long batches": lambda random: _warm(random) | {"is_batch": True, "declared": _longer(FIXED, 1, 4)},
    "arrivals": lambda random: (
        _warm(random) | {"declared": PEOPLE, "rate_per_s": random.uniform(2, 20), "tells": (PROMPTS, CONTEXT, SECONDS)}
    ),
}


def worlds(kind: str, seeds: range, restarts: int) -> Iterator[tuple[World, list[list[Window]], float]]:
    """Yield worlds of this kind with their restarts and the minutes that these took."""
    for seed in seeds:
        random = np.random.default_rng((crc32(kind.encode()), seed))
        world = replace(_quiet(random), **KINDS[kind](random))
        yield world, *world.restarts(random, restarts)
