"""Made-up experiments that hold every kind of reading, for pinning what they merge to to the last digits.

What the meter reads is drawn, with a fixed seed: one GPU whose driver keeps 20 ms samples, one with a counter and
polled power only, one that is not used.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from make.machine import VirtualMachine, experiment, study
from make.records import measured, request, sampled_power, stepped_power
from seams.execution import environment
from seams.inputs import shape_config
from seams.metering import HBM_POWER, HostTimeline, ProcessSample, Series, Ticks, Window
from seams.records import DeclaredWork, Steps, TokenSeries

from wattdock.clock import NS_PER_S, ClockCheck
from wattdock.config import ExperimentConfig
from wattdock.host import GpuProcess
from wattdock.metering import GpuTimeline, MeterEvent, Span, Timeline
from wattdock.records import PassRecord, RestartRecord, RunnerEnvironment

if TYPE_CHECKING:
    from wattdock.records import EnvironmentSnapshot, RequestRecord

SAMPLED, COUNTED, UNUSED = "GPU-0", "GPU-1", "GPU-2"
# Seconds: idle without a runner, idle with the model, the passes; the recording is longer.
EMPTY, LOADED, FIRST, SECOND, END_S = (4, 12), (13, 21), (22, 52), (53, 83), 100.0
IN_FLIGHT, TOKENS, PROMPT_TOKENS = 4, 40, 128
Random = np.random.Generator


def every(period_s: float, random: Random, low: float, high: float) -> Series:
    """Return readings at about every so many seconds, drawn between two values."""
    at_s = np.arange(0.5, END_S, period_s) + random.uniform(0, period_s / 10)
    return Series(np.round(at_s * NS_PER_S).astype(np.int64), random.uniform(low, high, len(at_s)))


def growing(period_s: float, random: Random, most_per_s: float) -> Series:
    """Return readings of a cumulative counter."""
    drawn = every(period_s, random, 0, most_per_s * period_s)
    return replace(drawn, value=np.cumsum(drawn.value))


def with_gaps(drawn: Series, random: Random) -> Series:
    """Return readings of which some are missing, for 0.3 s in a pass too, and for 0.1 s in another."""
    kept = (random.random(len(drawn.at_ns)) > 0.02) & (abs(drawn.at_ns - 40 * NS_PER_S) > 0.15 * NS_PER_S)
    kept &= abs(drawn.at_ns - 60 * NS_PER_S) > 0.05 * NS_PER_S
    return Series(drawn.at_ns[kept], drawn.value[kept])


def power(random: Random) -> list[tuple[float, float]]:
    """Return 100 W but for the passes, in which power is held for up to a second at a time."""
    steps = [(float(FIRST[0]), 100.0)]
    for start_s, end_s in (FIRST, SECOND):
        lengths_s = random.uniform(0.03, 1.0, 200)
        lengths_s = lengths_s[np.cumsum(lengths_s) < end_s - start_s - 0.1]
        steps += [(float(length_s), float(random.uniform(300, 690))) for length_s in lengths_s]
        steps.append((end_s - start_s - float(lengths_s.sum()), 400.0))
        steps.append((SECOND[0] - FIRST[1] if end_s == FIRST[1] else END_S - SECOND[1], 100.0))
    return steps


def read(gpu: GpuTimeline, random: Random, *, counter_step_mj: int) -> GpuTimeline:
    """Return a GPU as a meter reads it: calls that take time, a counter of some resolution, all other readings."""
    count = len(gpu.ticks.energy_mj)
    took_ns = random.integers(1_000_000, 4_000_000, (3, count))
    before_end_ns = gpu.ticks.after_start_ns - took_ns[0]
    ticks = Ticks(
        before_end_ns - took_ns[1],
        before_end_ns,
        gpu.ticks.after_start_ns,
        gpu.ticks.after_start_ns + took_ns[2],
        gpu.ticks.energy_mj // counter_step_mj * counter_step_mj,
    )
    series = {
        **{name: with_gaps(drawn, random) for name, drawn in gpu.series.items()},
        "temperature_c": every(1.0, random, 40, 41),
        "memory_temperature_c": every(1.0, random, 50, 52),
        "sm_clock_mhz": every(0.5, random, 1500, 1980),
        "memory_clock_mhz": every(0.5, random, 3000, 3201),
        "memory_used_bytes": every(0.5, random, 9e9, 10e9),
        "gpu_utilization_percent": every(0.5, random, 60, 100),
        "performance_state": every(1.0, random, 0, 2),
        "power_limit_w": every(1.0, random, 690, 700),
        "clocks_limited": every(1.0, random, 0, 1),
        HBM_POWER: every(0.1, random, 20, 24),
        "violation_power_ns": growing(1.3, random, 1e8),
        "violation_thermal_ns": growing(1.3, random, 1e7),
    }
    lists = tuple(
        ProcessSample(at_s * NS_PER_S, (GpuProcess(77, "compute", 5_000_000_000 + at_s, "a", "b"),))
        for at_s in (10, 20, *FIRST, *SECOND, 95)
    )
    event = MeterEvent(30 * NS_PER_S, "read_error", reading="temperature_c", said="Unknown Error")
    return replace(gpu, ticks=ticks, series=series, processes=lists, events=(event,), busy_fraction=0.02)


def timeline(seed: int) -> Timeline:
    """Return what was read of three GPUs and of the host."""
    random = np.random.default_rng(seed)
    sampled = read(sampled_power(SAMPLED, power(random), random), random, counter_step_mj=1)
    counted = read(stepped_power(COUNTED, power(random)), random, counter_step_mj=1000)
    polled_s = np.arange(0.02, END_S, 0.05)
    polled = Series(np.round(polled_s * NS_PER_S).astype(np.int64), random.uniform(350, 650, len(polled_s)))
    counted = replace(counted, series={**counted.series, "power_w": polled})
    unused = read(sampled_power(UNUSED, [(50, 80.0), (50, 95.0)], random), random, counter_step_mj=1)
    host = {"package-0": growing(0.1, random, 90), "package-0-dram": growing(0.1, random, 20)}
    windows = tuple(
        Window(_span("pass", start_s - 0.3, end_s + 0.4), {SAMPLED: 15_500.0, COUNTED: 15_200.0, UNUSED: 2_500.0})
        for start_s, end_s in (FIRST, SECOND)
    )
    return Timeline(
        "zeus",
        0,
        round(END_S * NS_PER_S),
        {
            SAMPLED: sampled,
            COUNTED: counted,
            UNUSED: replace(unused, processes=()),
        },
        windows=windows,
        host=HostTimeline(host),
    )


def _span(name: str, start_s: float, end_s: float) -> Span:
    return Span(name, round(start_s * NS_PER_S), round(end_s * NS_PER_S))


def rounds(start_s: float, end_s: float, random: Random) -> list[RequestRecord]:
    """Return requests of a static batch, round after round."""
    requests: list[RequestRecord] = []
    at_s = start_s + 0.01
    while at_s + 2.2 < end_s:
        first_s, last_s = at_s + random.uniform(0.3, 0.6), at_s + random.uniform(1.6, 2.1)
        requests += [request(len(requests) + slot, at_s, first_s, last_s, TOKENS) for slot in range(IN_FLIGHT)]
        at_s = last_s + random.uniform(0.01, 0.1)
    return requests


def closed(start_s: float, end_s: float, random: Random) -> list[RequestRecord]:
    """Return requests of slots that take the next one as soon as one has ended."""
    requests: list[RequestRecord] = []
    for slot in range(IN_FLIGHT):
        at_s = start_s + 0.001
        length_s = 2.0 * (slot + 1) / IN_FLIGHT
        while at_s + length_s < end_s:
            requests.append(request(len(requests), at_s, at_s + 0.2, at_s + length_s, TOKENS))
            at_s, length_s = at_s + length_s + 0.002, float(random.uniform(1.5, 2.5))
    return requests


def arriving(start_s: float, end_s: float, random: Random) -> list[RequestRecord]:
    """Return requests of an open loop that are served a little late, and the later the further the pass goes."""
    requests = []
    for index, at_s in enumerate(np.sort(random.uniform(start_s + 0.1, end_s - 3, 40))):
        enters_s = at_s + 0.02 * (at_s - start_s)
        served = request(index, enters_s, enters_s + 0.3, enters_s + random.uniform(0.8, 1.5), TOKENS)
        requests.append(replace(served, intended_ns=round(at_s * NS_PER_S)))
    return requests


def one_pass(index: int, start_s: float, end_s: float, requests: list[RequestRecord], random: Random) -> PassRecord:
    """Return a pass of these requests, with its course of tokens and its steps."""
    requests = [replace(each, prompt_tokens=PROMPT_TOKENS + each.index % 25) for each in requests]
    done = measured(index, start_s, end_s, tuple(requests))
    firsts = [each.first_token_ns or 0 for each in requests]
    at_ns = np.sort(
        np.concatenate(
            [
                np.linspace(first_ns, each.finished_ns or 0, TOKENS)
                for first_ns, each in zip(firsts, requests, strict=True)
            ]
        )
    ).astype(np.int64)
    edges_ns = np.arange(done.span.start_ns, done.span.end_ns - 40_000_000, 30_000_000)
    decoded = random.integers(0, IN_FLIGHT + 1, len(edges_ns))
    prompt = random.choice([0, 0, 128, 512], len(edges_ns))
    steps = Steps(
        edges_ns,
        edges_ns + random.integers(10_000_000, 29_000_000, len(edges_ns)),
        prompt,
        decoded,
        decoded,
        decoded * random.integers(100, 300, len(edges_ns)) + prompt,
    )
    return replace(
        done,
        tokens=TokenSeries(at_ns, np.arange(1, len(at_ns) + 1)),
        steps=steps,
        prompt_tokens=sum(each.prompt_tokens or 0 for each in requests),
        cached_prompt_tokens=7 * len(requests),
        prompt_repeats=index,
        repeated_prompts=index,
        # Prompts and answers as long as these, and so the positions before each token but the first.
        declared=DeclaredWork(140.0, float(TOKENS), 140.0 * (TOKENS - 1) + TOKENS * (TOKENS - 1) / 2),
        cpu_others_share=0.02,
        arrivals_due=len(requests) + 1 if requests[0].intended_ns else None,
    )


def split(done: PassRecord) -> PassRecord:
    """Return a pass that two engines have served, each half of the requests."""
    half = len(done.requests) // 2
    requests = (replace(request, replica=int(at >= half)) for at, request in enumerate(done.requests))
    return replace(done, requests=tuple(requests))


ARRIVALS: dict[str, dict[str, Any]] = {
    "rounds": {"arrival": "batch"},
    "arriving": {"arrival": "poisson", "rate_per_s": 1.5},
}
KINDS = {"rounds": rounds, "closed": closed, "arriving": arriving, "replicas": closed}


def scene(kind: str) -> tuple[ExperimentConfig, list[RestartRecord]]:
    """Return the settings and the records of two restarts of an experiment."""
    arrival = ARRIVALS.get(kind, {"arrival": "closed"})
    settings = {
        "workload": {"batch_size": IN_FLIGHT, "max_output_tokens": TOKENS, "min_duration_s": 15, **arrival},
        "warmup": {"profile": "lead-in", "lead_in_s": 4},
        "idle": {"duration_s": 8},
    }
    config = ExperimentConfig.model_validate({"backend": "vllm", "model": "shape:tiny-llama", **settings})
    return config, [_restart(kind, config, number) for number in range(2)]


def _restart(kind: str, config: ExperimentConfig, number: int) -> RestartRecord:
    random = np.random.default_rng(number + 10)
    passes = [
        one_pass(index, *span_s, KINDS[kind](*span_s, random), random) for index, span_s in enumerate((FIRST, SECOND))
    ]
    record = RestartRecord(
        number,
        started_utc=f"2026-01-01T00:0{number}:00.000+00:00",
        spans=(
            _span("idle-empty", *EMPTY),
            _span("load", 12, 13),
            _span("idle-loaded", *LOADED),
        ),
        passes=tuple(map(split, passes)) if kind == "replicas" else tuple(passes),
        clock_checks=(ClockCheck("boot", 1000),),
        timeline=timeline(number),
        runner_pids=frozenset({77}),
        clock="boot x",
    )
    return replace(record, environment=_environment(record), architecture=shape_config("tiny-llama"))


def _environment(record: RestartRecord) -> EnvironmentSnapshot:
    machine = VirtualMachine(Path(), dict.fromkeys((SAMPLED, COUNTED, UNUSED), lambda _: 100.0))
    [plan] = machine.plans(study(experiment("a")), gpus=[SAMPLED, COUNTED])
    runner = RunnerEnvironment(
        visible_gpu_uuids=[SAMPLED, COUNTED],
        used_gpu_uuids=[SAMPLED, COUNTED],
        framework="fake",
        weight_bytes=10_000_000,
        engine_args={"dtype": "bfloat16"},
    )
    return environment(plan, record, runner, None)
