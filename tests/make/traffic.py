"""Simulated engines whose every joule is known, and meters of them: work in spans, closed loops."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from seams.analysis import Bins, Joules, MeteredWork, SpanJoules, Work
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.records import PassRecord, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wattdock.metering import Timeline

    Floats = NDArray[np.float64]

IDLE_W = 118.0
# Joules per prompt token, per decoded token, per step, per token of context read: about an 8 B model on an H200.
JOULES = (0.015, 0.03, 2.4, 2e-5)
START_S = 1000.0


@dataclass(frozen=True)
class SimulatedMeter:
    """How a meter distorts the course of energy.

    Attributes:
        period_s: Of its bins.
        jitter_s: By which each edge is stamped wrong (standard deviation, as on an H200).
        lag_s: By which all edges are.
        noise: Of each bin's energy, relative standard deviation; the level is the counter's again every second.
    """

    period_s: float = 0.02
    jitter_s: float = 0.003
    lag_s: float = 0.004
    noise: float = 0.02

    def bins(self, at_s: Floats, energy_j: Floats, random: np.random.Generator) -> Bins:
        """Return what it records of a course of energy, known at `at_s`."""
        edges_s = np.arange(at_s[0] + random.uniform(0, self.period_s), at_s[-1] - 0.05, self.period_s)
        true_s = edges_s - self.lag_s + random.normal(0, self.jitter_s, len(edges_s))
        bins_j = np.diff(np.interp(true_s, at_s, energy_j))
        seen_j = bins_j * random.normal(1, self.noise, len(bins_j))
        second = (edges_s[:-1] - edges_s[0]).astype(int)
        seen_j *= (np.bincount(second, bins_j) / np.bincount(second, seen_j))[second]
        return Bins(np.round(edges_s * NS_PER_S).astype(np.int64), seen_j)


def metered(work: Work, meter: SimulatedMeter, random: np.random.Generator, joules: Sequence[float]) -> MeteredWork:
    """Return the work beside what the meter saw of its energy."""
    start_s, end_s = work.start_ns / NS_PER_S, work.end_ns / NS_PER_S
    of_steps_j = np.column_stack((work.amounts @ np.array(joules), np.zeros(len(start_s))))
    edges_s = np.column_stack((start_s, end_s)).ravel()
    waits_j = np.diff(edges_s)[1::2] * IDLE_W
    of_steps_j[:-1, 1] = waits_j
    energy_j = np.concatenate(([0.0], np.cumsum(of_steps_j.ravel()[:-1])))
    return MeteredWork(work, (meter.bins(edges_s, energy_j, random),))


# Kind of lengths → so many tokens of this mean; a sixth of bimodal ones is five times as long as the others.
LENGTHS: dict[str, Callable[[np.random.Generator, int, int], Any]] = {
    "fixed": lambda _, mean, count: np.full(count, mean),
    "lognormal": lambda random, mean, count: np.clip(random.lognormal(np.log(mean) - 0.5, 1, count), 4, 8 * mean),
    "bimodal": lambda random, mean, count: np.where(random.random(count) < 5 / 6, 0.6 * mean, 3 * mean),
}


@dataclass(frozen=True)
class ClosedLoop:
    """A pass with as many requests always in flight, and the course of its energy."""

    record: PassRecord
    at_s: Floats
    energy_j: Floats

    def drifting(self, relative: float) -> ClosedLoop:
        """Return the same pass on a board that needs more and more for equal work, this much from half to half."""
        middle_s = (self.at_s[0] + self.at_s[-1]) / 2
        factor = 1 + 2 * relative * (self.at_s[1:] - middle_s) / (self.at_s[-1] - self.at_s[0])
        return ClosedLoop(self.record, self.at_s, np.concatenate(([0.0], np.cumsum(np.diff(self.energy_j) * factor))))


def closed_loop(
    seconds: float,
    random: np.random.Generator,
    *,
    in_flight: int,
    lengths: str,
    prompt: int = 512,
    output: int = 250,
    joules: Sequence[float] = JOULES,
    staggered: bool = True,
) -> ClosedLoop:
    """Return a pass of a stationary engine that computes each prompt in one step.

    Args:
        staggered: Whether its first slots are out of step.
        lengths: A key of `LENGTHS`, for prompts of `prompt` and answers of `output` tokens on average.
    """
    count = in_flight + int(seconds * 400 * in_flight / output)
    prompts, outputs = (np.ceil(LENGTHS[lengths](random, mean, count)).astype(int) for mean in (prompt, output))
    if staggered:
        outputs[:in_flight] = np.maximum(2, outputs[:in_flight] * np.arange(1, in_flight + 1) / in_flight)
    prompts, outputs = prompts.tolist(), outputs.tolist()
    at_s, total_j, steps = START_S, 0.0, [(START_S, 0, 0.0)]
    # Of each request.
    submitted_s, first_s, finished_s = list[float](), list[float](), [0.0] * count
    # How many are in flight, and their context; by the step after which they are done, which ones.
    active, context, ends = 0, 0, defaultdict[int, list[int]](list)
    free, begun, tokens = in_flight, 0, 0
    while True:
        fresh = range(begun, begun + free * (at_s < START_S + seconds and begun + free <= count))
        begun = fresh.stop
        prompted = sum(prompts[fresh.start : fresh.stop])
        active, context = active + len(fresh), context + prompted
        for request in fresh:
            ends[len(steps) + outputs[request] - 1].append(request)
        submitted_s += [at_s] * len(fresh)
        if not active:
            break
        at_s += (5e-3 + prompted * 2.5e-5 + active * 5e-5 + context * 3e-8) * random.uniform(0.97, 1.05)
        total_j += prompted * joules[0] + active * joules[1] + joules[2] + context * joules[3]
        first_s += [at_s] * len(fresh)
        tokens, context = tokens + active, context + active
        done = ends.pop(len(steps), [])
        steps.append((at_s, tokens, total_j))
        free, active = len(done), active - len(done)
        for request in done:
            finished_s[request] = at_s
            context -= prompts[request] + outputs[request]
    times, counts, energy_j = (np.array(column) for column in zip(*steps, strict=True))
    rows = np.round(np.column_stack((submitted_s, first_s, finished_s[:begun])) * NS_PER_S).astype(np.int64).tolist()
    record = PassRecord(
        span=Span("pass", round(START_S * NS_PER_S), round(at_s * NS_PER_S)),
        requests=tuple(
            RequestRecord(
                index=index,
                submitted_ns=submitted,
                first_token_ns=first,
                finished_ns=finished,
                prompt_tokens=prompts[index],
                output_tokens=outputs[index],
            )
            for index, (submitted, first, finished) in enumerate(rows)
        ),
        tokens=TokenSeries(np.round(times[1:] * NS_PER_S).astype(np.int64), counts[1:]),
        output_tokens=tokens,
        prompt_tokens=sum(prompts[:begun]),
        cached_prompt_tokens=0,
        prompt_repeats=0,
        index=0,
    )
    return ClosedLoop(record, times, energy_j)


class KnownJoules(SpanJoules):
    """The energy of spans of a pass whose course is known, seen by a meter like an H200's: 3 ms and 0.2 %."""

    def __init__(self, loop: ClosedLoop, random: np.random.Generator) -> None:
        """Take the pass, and what draws the errors."""
        super().__init__()
        self._loop, self._random = loop, random

    def of(self, timeline: Timeline | None, span: Span, uuids: Sequence[str], *, hbm: bool = False) -> Joules:
        """Return the energy of a span."""
        edges_s = np.array([span.start_ns, span.end_ns]) / NS_PER_S + self._random.normal(0, 0.003, 2)
        energy_j = np.diff(np.interp(edges_s, self._loop.at_s, self._loop.energy_j))[0]
        return Joules(float(energy_j * self._random.normal(1, 0.002)), {})
