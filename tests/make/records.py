"""Small made-up passes and timelines, for tests of pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from seams.analysis import Measured, Performance, performance
from seams.metering import COUNTER_LAG, SAMPLES, Series, Ticks
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig
from wattdock.metering import EnergyCurve, GpuTimeline, Span, Timeline
from wattdock.records import PassRecord, RequestRecord, RestartRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

PERIOD_S = 0.1


def constant_power(uuid: str, power_w: float, *, start_s: float, end_s: float) -> GpuTimeline:
    """A counter that ticks every 100 ms under constant power, each change seen by calls of 1 ms on either side."""
    at_ns = (np.arange(start_s, end_s, PERIOD_S) * NS_PER_S).astype(np.int64)
    energy_mj = np.round(at_ns / NS_PER_S * power_w * 1e3).astype(np.int64)
    ticks = Ticks(at_ns - 2_000_000, at_ns - 1_000_000, at_ns, at_ns + 1_000_000, energy_mj)
    return GpuTimeline(uuid=uuid, energy_source="counter", ticks=ticks, period_s=PERIOD_S)


def stepped_power(uuid: str, steps: Sequence[tuple[float, float]]) -> GpuTimeline:
    """A counter that ticks every 100 ms and trails as is assumed, under powers held for a while: (seconds, watts)."""
    lengths_s, power_w = np.array(steps).T
    edges_s = np.concatenate(([0.0], np.cumsum(lengths_s)))
    energy_j = np.concatenate(([0.0], np.cumsum(lengths_s * power_w)))
    at_s = np.arange(0.05, edges_s[-1], PERIOD_S)
    energy_mj = np.round(np.interp(at_s - COUNTER_LAG.mean_s, edges_s, energy_j) * 1e3).astype(np.int64)
    at_ns = (at_s * NS_PER_S).astype(np.int64)
    ticks = Ticks(at_ns - 1_000_000, at_ns - 1_000_000, at_ns + 1_000_000, at_ns + 1_000_000, energy_mj)
    return GpuTimeline(uuid=uuid, energy_source="counter", ticks=ticks, period_s=PERIOD_S)


def sampled_power(uuid: str, steps: Sequence[tuple[float, float]], random: np.random.Generator) -> GpuTimeline:
    """The same seen by the driver's 20 ms samples, whose ends are stamped wrong by 3 ms, and one change in ten."""
    lengths_s, power_w = np.array(steps).T
    edges_s = np.concatenate(([0.0], np.cumsum(lengths_s)))
    energy_j = np.concatenate(([0.0], np.cumsum(lengths_s * power_w)))
    counter = stepped_power(uuid, steps)
    ticks = Ticks(**{name: series[::10] for name, series in vars(counter.ticks).items()})
    ends_s = np.arange(0.013, edges_s[-1], 0.02)
    means_w = np.diff(np.interp(ends_s + random.normal(0, 0.003, len(ends_s)), edges_s, energy_j), prepend=0.0) / 0.02
    at_ns = np.round((ends_s + EnergyCurve.SAMPLE_LAG.mean_s) * NS_PER_S).astype(np.int64)
    return replace(counter, ticks=ticks, series={SAMPLES: Series(at_ns, means_w)})


def timeline(*gpus: GpuTimeline) -> Timeline:
    return Timeline("nvml", 0, 100 * NS_PER_S, {gpu.uuid: gpu for gpu in gpus})


def experiment(
    *restarts: RestartRecord, used: Sequence[str] = ("GPU-a",), bystanders: Sequence[str] = (), **settings: Any
) -> Measured:
    """Restarts on these GPUs, with settings beside those of the fake backend."""
    config = ExperimentConfig.model_validate({"backend": "fake", **settings})
    return Measured(config, restarts, tuple(used), bystanders=tuple(bystanders))


def speed_of(*passes: PassRecord) -> Performance:
    """Speed over passes of batches, each with all that came until its engine had drained."""
    made_up = experiment(RestartRecord(0, passes=passes), used=())
    speed = performance(made_up)
    assert speed is not None
    return speed


def request(index: int, submitted_s: float, first_s: float, finished_s: float, tokens: int) -> RequestRecord:
    def ns(at_s: float) -> int:
        return round(at_s * NS_PER_S)

    return RequestRecord(
        index=index,
        submitted_ns=ns(submitted_s),
        first_token_ns=ns(first_s),
        finished_ns=ns(finished_s),
        prompt_tokens=10,
        output_tokens=tokens,
        finish_reason="length",
    )


def measured(index: int, start_s: float, end_s: float, requests: tuple[RequestRecord, ...]) -> PassRecord:
    total = sum(request.output_tokens or 0 for request in requests)
    tokens = TokenSeries(np.array([int(end_s * NS_PER_S)]), np.array([total]))
    span = Span("pass", round(start_s * NS_PER_S), round(end_s * NS_PER_S))
    return PassRecord(
        span=span,
        requests=requests,
        tokens=tokens,
        output_tokens=total,
        prompt_tokens=10 * len(requests),
        cached_prompt_tokens=None,
        prompt_repeats=0,
        index=index,
        prompts_sha256="f" * 64,
    )
