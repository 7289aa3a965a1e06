"""Simulated engines whose every joule is known, and a meter of them: live traffic, rounds of a static batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.token_costs import Bins, MeteredWork, Work
from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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


def traffic(seconds: float, random: np.random.Generator, *, rate_per_s: float = 3, in_flight: int = 32) -> Work:
    """Return the steps of a continuous-batching engine under Poisson arrivals, prompts in pieces of 1,024 tokens.

    Amounts are prompt tokens, decoded tokens, steps and tokens of context read.
    """
    arrivals_s = START_S + np.cumsum(random.exponential(1 / rate_per_s, int(seconds * rate_per_s * 2)))
    prompts = np.clip(random.lognormal(6, 0.8, len(arrivals_s)), 16, 4000).astype(int)
    outputs = random.integers(20, 300, len(arrivals_s))
    waiting, at_s, rows = 0, START_S, []
    # Of each running request: prompt tokens to compute, context, tokens to decode.
    running = np.zeros((0, 3), dtype=int)
    while at_s < START_S + seconds:
        while waiting < len(arrivals_s) and arrivals_s[waiting] <= at_s and len(running) < in_flight:
            running = np.vstack((running, [prompts[waiting], 0, outputs[waiting]]))
            waiting += 1
        if not len(running):
            at_s = arrivals_s[waiting]
            continue
        budget = 1024 - np.concatenate(([0], np.cumsum(running[:-1, 0])))
        computed = np.clip(budget, 0, running[:, 0])
        decodes = running[:, 0] == 0
        running[:, 0] -= computed
        running[:, 1] += computed + decodes
        running[:, 2] -= decodes
        amounts = (computed.sum(), decodes.sum(), 1, running[decodes | (computed > 0), 1].sum())
        length_s = (5e-3 + amounts[0] * 2.5e-5 + amounts[1] * 5e-5 + amounts[3] * 3e-8) * random.uniform(0.95, 1.1)
        rows.append((at_s, at_s + length_s, *amounts))
        at_s += length_s + 2e-4
        running = running[running[:, 2] > 0]
    table = np.array(rows)
    start_ns, end_ns = np.round(table[:, :2].T * NS_PER_S).astype(np.int64)
    return Work(start_ns, end_ns, table[:, 2:])


def metered(
    work: Work, meter: SimulatedMeter, random: np.random.Generator, joules: Sequence[float] = JOULES
) -> MeteredWork:
    """Return the work beside what the meter saw of its energy."""
    start_s, end_s = work.start_ns / NS_PER_S, work.end_ns / NS_PER_S
    of_steps_j = np.column_stack((work.amounts @ np.array(joules), np.zeros(len(start_s))))
    edges_s = np.column_stack((start_s, end_s)).ravel()
    waits_j = np.diff(edges_s)[1::2] * IDLE_W
    of_steps_j[:-1, 1] = waits_j
    energy_j = np.concatenate(([0.0], np.cumsum(of_steps_j.ravel()[:-1])))
    return MeteredWork(work, (meter.bins(edges_s, energy_j, random),))


def static_batch(random: np.random.Generator, *, sequences: int = 16, prompt: int = 256, output: int = 100) -> Work:
    """Return the steps of 20 s of rounds of a static batch: a prefill, then a step per token of all sequences."""
    rows: list[tuple[float, ...]] = []
    at_s = START_S
    while at_s < START_S + 20:
        tokens = sequences * prompt
        rows.append((at_s, at_s := at_s + 0.1, tokens, 0, 1, tokens))
        for step in range(1, output):
            context = sequences * (prompt + step)
            rows.append((at_s, at_s := at_s + 0.008 * random.uniform(0.98, 1.02), 0, sequences, 1, context))
        at_s += random.uniform(0.01, 0.2)
    table = np.array(rows)
    start_ns, end_ns = np.round(table[:, :2].T * NS_PER_S).astype(np.int64)
    return Work(start_ns, end_ns, table[:, 2:])
