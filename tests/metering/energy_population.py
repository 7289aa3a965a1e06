"""Random GPUs, power profiles and windows for judging energy intervals; the same mix for every claim.

Without a fault, lags come from the distributions that `curve` and `power_profile` assume; everything else comes from
ranges wider than those seen on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import fake_nvml
import numpy as np
from fake_nvml import FakeGpu, Segment
from seams.metering import COUNTER_LAG, SAMPLE_LAG, SAMPLES, NvmlSource, Series, Ticks

from wattdock.clock import NS_PER_S
from wattdock.metering import EnergyCurve, Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from wattdock.metering import GpuTimeline

RECORDED_S = 75.0
SHORTEST_S, LONGEST_S = 0.03, 60.0
# Between the last sample and the last change, or the first ones, of a recording that is cut.
NEAR_S = 0.06
PROFILES = ("constant", "steps", "bursts", "sine", "ramps", "session", "switching")
# Bounds of the lengths by which windows are judged.
EDGES_S = (SHORTEST_S, 0.1, 0.3, 1.0, 3.0, 10.0, LONGEST_S)
NO_FAULT = "no fault"
# What differs in a GPU with a fault, by the fault's name.
FAULTS: Mapping[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    NO_FAULT: lambda _: {},
    "5 % of samples lost": lambda _: {"sample_drop_probability": 0.05},
    "20 % of samples lost": lambda _: {"sample_drop_probability": 0.2},
    "counter's lag −8 to +12 ms": lambda rng: {"lag_s": rng.uniform(-0.008, 0.012)},
    "samples' lag −8 to +12 ms": lambda rng: {"sample_lag_s": rng.uniform(-0.008, 0.012)},
    "counter's period 500 ms": lambda _: {"period_s": 0.5},
    "counter's step 1 J": lambda _: {"counter_step_mj": 1_000},
    "counter's step 15 J": lambda _: {"counter_step_mj": 15_000},
}


@dataclass(frozen=True)
class Window:
    """One window and what became of it; joules and seconds."""

    profile: str
    aligned: bool
    start_s: float
    duration_s: float
    true_j: float
    energy_j: float
    timing_j: float
    difference_j: float
    fault: str = NO_FAULT

    @property
    def error_j(self) -> float:
        """Estimate less truth."""
        return self.energy_j - self.true_j

    @property
    def covered(self) -> bool:
        """Whether the 95 % interval holds the truth."""
        return abs(self.error_j) <= 1.96 * self.timing_j


def profile_of(kind: str, rng: np.random.Generator) -> tuple[tuple[Segment, ...], list[float]]:
    """Draw a power profile and the instants, s, at which it steps."""
    low_w, high_w = rng.uniform(75, 300), rng.uniform(300, 700)
    if kind == "constant":
        return (fake_nvml.constant(rng.uniform(75, 700)),), []
    if kind == "bursts":
        period_s, duty = float(np.exp(rng.uniform(np.log(0.15), np.log(5)))), rng.uniform(0.1, 0.9)
        edges = [n * period_s + part for n in range(int(RECORDED_S / period_s)) for part in (0.0, duty * period_s)]
        return (fake_nvml.square(low_w, high_w, period_s, duty),), edges
    if kind == "sine":
        period_s = float(np.exp(rng.uniform(np.log(0.5), np.log(20))))
        mean_w = (low_w + high_w) / 2
        return (fake_nvml.sine(mean_w, (high_w - low_w) / 2, period_s, phase_rad=rng.uniform(0, 6.28)),), []
    if kind == "session":
        return session(rng)
    if kind == "switching":
        # As in the recording of an H200 that the constants of `power_profile` are fitted to.
        lengths_s = rng.uniform(0.04, 0.4, 250)
        pieces = [fake_nvml.constant((low_w, high_w)[n % 2], length_s) for n, length_s in enumerate(lengths_s)]
        return (*pieces, fake_nvml.constant(low_w)), np.cumsum(lengths_s).tolist()
    segments: list[Segment] = []
    edges = []
    at_s, from_w = 0.0, low_w
    while at_s < RECORDED_S and len(segments) < 60:
        length_s, to_w = rng.uniform(0.4, 8), rng.uniform(75, 700)
        ramp = kind == "ramps"
        segments.append(fake_nvml.ramp(from_w, to_w, length_s) if ramp else fake_nvml.constant(to_w, length_s))
        at_s, from_w = at_s + length_s, to_w
        edges += [] if ramp else [at_s]
    return (*segments, fake_nvml.constant(from_w)), edges


def session(rng: np.random.Generator) -> tuple[tuple[Segment, ...], list[float]]:
    """Idle, then passes of prefill at the power limit and decode below it, with idle between them."""
    idle_w, decode_w, prefill_w = rng.uniform(75, 125), rng.uniform(300, 650), rng.uniform(650, 700)
    segments = [fake_nvml.constant(idle_w, rng.uniform(1, 5))]
    edges, at_s = [], segments[0].duration_s
    while at_s < RECORDED_S and len(segments) < 58:
        lengths_s = rng.uniform(0.05, 0.8), rng.uniform(1, 15), rng.uniform(0.5, 3)
        for power_w, length_s in zip((prefill_w, decode_w, idle_w), lengths_s, strict=True):
            edges.append(at_s)
            segments.append(fake_nvml.constant(power_w, length_s))
            at_s += length_s
    return (*segments, fake_nvml.constant(idle_w)), edges


def gpu_of(
    number: int, kind: str, rng: np.random.Generator, *, has_samples: bool = True
) -> tuple[FakeGpu, list[float]]:
    """Draw one GPU with a profile of a kind; its driver may keep samples of power."""
    profile, edges = profile_of(kind, rng)
    spread_s = COUNTER_LAG.std_s * 3**0.5
    gpu = FakeGpu(
        uuid=fake_nvml.uuid_of(number),
        unsupported="" if has_samples else "samples",
        profile=profile,
        seed=int(rng.integers(1, 2**40)),
        lag_s=COUNTER_LAG.mean_s + rng.uniform(-spread_s, spread_s),
        counter_step_mj=float(rng.choice([1, 1, 10, 1000])),
        jitter_load_s=rng.uniform(0.0015, 0.013),
        drop_probability=float(rng.choice([0.0, 0.0, 0.02])),
        sample_lag_s=SAMPLE_LAG.mean_s + rng.uniform(-1, 1) * SAMPLE_LAG.std_s * 3**0.5,
        sample_jitter_s=rng.uniform(0.004, 0.01),
        sample_drop_probability=float(rng.choice([0.0, 0.0, 0.02])),
        phase_s=rng.uniform(0, 0.1),
        read_cost_s=rng.uniform(0.001, 0.004),
        slow_probability=rng.uniform(0, 0.04),
    )
    return gpu, edges


def record(fake: fake_nvml.FakeNvml) -> GpuTimeline:
    """Run the real meter over one simulated GPU on the virtual clock."""
    meter = Meter(NvmlSource(), clock=fake)
    meter.start()
    [timeline] = meter.stop(fake_nvml.VIRTUAL_ORIGIN_NS + int(RECORDED_S * NS_PER_S)).gpus.values()
    return timeline


def windows_of(
    kind: str,
    timeline: GpuTimeline,
    fake: fake_nvml.FakeNvml,
    edges: list[float],
    rng: np.random.Generator,
    count: int,
) -> list[Window]:
    """Draw windows of log-uniform length from one recording; a third begin and end where power steps."""
    curve = EnergyCurve(timeline)
    windows: list[Window] = []
    while len(windows) < count:
        length_s = float(np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S))))
        start_s = rng.uniform(1.0, RECORDED_S - 1 - length_s)
        end_s = start_s + length_s
        aligned = bool(edges) and len(windows) % 3 == 0
        if aligned:
            start_s, end_s = (edges[int(np.argmin(np.abs(np.array(edges) - at_s)))] for at_s in (start_s, end_s))
            if not SHORTEST_S <= end_s - start_s <= LONGEST_S or start_s < 1 or end_s > RECORDED_S - 0.5:
                aligned, (start_s, end_s) = False, (rng.uniform(1.0, 2.0), 2.0 + length_s)
        windows.append(window_of(kind, curve, fake, start_s, end_s, aligned=aligned))
    return windows


def window_of(
    kind: str, curve: EnergyCurve, fake: fake_nvml.FakeNvml, start_s: float, end_s: float, *, aligned: bool
) -> Window:
    """Return what became of one window."""
    start_ns, end_ns = (fake_nvml.VIRTUAL_ORIGIN_NS + int(at * 1e9) for at in (start_s, end_s))
    got = curve.between(start_ns, end_ns)
    assert got.energy_j is not None, got.reason
    assert got.timing_j is not None
    return Window(
        profile=kind,
        aligned=aligned,
        start_s=start_s,
        duration_s=(end_ns - start_ns) / 1e9,
        true_j=fake.energy_j(0, start_ns, end_ns),
        energy_j=got.energy_j,
        timing_j=got.timing_j,
        difference_j=(fake.counter_mj(0, end_ns) - fake.counter_mj(0, start_ns)) / 1000,
    )


def cut_windows_of(
    kind: str, timeline: GpuTimeline, fake: fake_nvml.FakeNvml, edges: list[float], rng: np.random.Generator
) -> list[Window]:
    """Draw windows at either end of recordings cut so that power steps, and samples cease, within 60 ms of a change."""
    windows: list[Window] = []
    changes_s = (timeline.ticks.after_start_ns - fake_nvml.VIRTUAL_ORIGIN_NS) / NS_PER_S - COUNTER_LAG.mean_s
    for k, change_s in enumerate(changes_s):
        # Ends of the samples next to the change.
        after_s, before_s = change_s + rng.uniform(0.02, NEAR_S), change_s - rng.uniform(0, NEAR_S - 0.02)
        length_s, beside_s = np.exp(rng.uniform(np.log(0.3), np.log(10))), rng.uniform(0.015, 0.15)
        since_s = change_s - np.array(edges)
        if ((since_s > 0) & (since_s < NEAR_S)).any() and change_s > 20:
            ended = EnergyCurve(cut(timeline, slice(k + 1), 0.0, before_s))
            end_s = change_s - beside_s
            windows.append(window_of(kind, ended, fake, end_s - length_s, end_s, aligned=False))
        if ((since_s < 0) & (since_s > -NEAR_S)).any() and change_s < RECORDED_S - 20:
            begun = EnergyCurve(cut(timeline, slice(k, None), after_s, RECORDED_S))
            start_s = change_s + beside_s
            windows.append(window_of(kind, begun, fake, start_s, start_s + length_s, aligned=False))
    return windows


def cut(timeline: GpuTimeline, kept: slice, from_s: float, until_s: float) -> GpuTimeline:
    """Return a recording with some of its changes, and the samples that end between two instants."""
    samples = timeline.series[SAMPLES]
    ends_s = (samples.at_ns - fake_nvml.VIRTUAL_ORIGIN_NS) / NS_PER_S - SAMPLE_LAG.mean_s
    inside = (ends_s > from_s) & (ends_s < until_s)
    ticks = Ticks(**{name: series[kept] for name, series in vars(timeline.ticks).items()})
    return replace(timeline, ticks=ticks, series={SAMPLES: Series(samples.at_ns[inside], samples.value[inside])})


def holed_windows_of(
    kind: str, timeline: GpuTimeline, fake: fake_nvml.FakeNvml, rng: np.random.Generator, count: int
) -> list[Window]:
    """Draw windows that begin or end in a hole of 60 to 400 ms without samples."""
    samples, windows = timeline.series[SAMPLES], []
    ends_s = (samples.at_ns - fake_nvml.VIRTUAL_ORIGIN_NS) / NS_PER_S - SAMPLE_LAG.mean_s
    for _ in range(count):
        hole_s, length_s = rng.uniform(0.06, 0.4), float(np.exp(rng.uniform(np.log(0.3), np.log(10))))
        begin_s = rng.uniform(20, RECORDED_S - 20)
        kept = (ends_s < begin_s) | (ends_s > begin_s + hole_s)
        series = {SAMPLES: Series(samples.at_ns[kept], samples.value[kept])}
        at_s = begin_s + rng.uniform(0, hole_s)
        start_s, end_s = (at_s, at_s + length_s) if rng.random() < 0.5 else (at_s - length_s, at_s)
        curve = EnergyCurve(replace(timeline, series=series))
        windows.append(window_of(kind, curve, fake, start_s, end_s, aligned=False))
    return windows


def draw_cut_windows(folder: Path, *, gpus: int, seed: int) -> tuple[list[Window], list[Window]]:
    """Return windows at the ends of cut recordings, and in holes of whole ones, with samples off by up to 3 %.

    Of GPUs whose power steps.
    """
    rng = np.random.default_rng(seed)
    cut_ones: list[Window] = []
    holed: list[Window] = []
    for number in range(gpus):
        kind = ("steps", "bursts", "session")[number % 3]
        gpu, edges = gpu_of(number, kind, rng)
        gpu = replace(gpu, power_reading_factor=rng.uniform(0.97, 1.03))
        with fake_nvml.loaded(folder, gpus=[gpu]) as fake:
            timeline = record(fake)
            cut_ones += cut_windows_of(kind, timeline, fake, edges, rng)
            holed += holed_windows_of(kind, timeline, fake, np.random.default_rng(number), 10)
    return cut_ones, holed


def draw_windows(
    folder: Path,
    *,
    gpus: int,
    windows_per_gpu: int,
    seed: int,
    has_samples: bool = True,
    faults: Sequence[str] = (NO_FAULT,),
) -> list[Window]:
    """Return windows over many independent GPUs, so many of each fault, profiles taken in turn."""
    rng = np.random.default_rng(seed)
    windows: list[Window] = []
    for fault in faults:
        for number in range(gpus):
            kind = PROFILES[number % len(PROFILES)]
            gpu, edges = gpu_of(number, kind, rng, has_samples=has_samples)
            gpu = replace(gpu, **FAULTS[fault](rng))
            with fake_nvml.loaded(folder, gpus=[gpu]) as fake:
                drawn = windows_of(kind, record(fake), fake, edges, rng, windows_per_gpu)
            windows += [replace(window, fault=fault) for window in drawn]
    return windows


def coverage(windows: list[Window]) -> float:
    """Share of windows whose 95 % interval holds the truth."""
    return float(np.mean([window.covered for window in windows]))


def strata(windows: list[Window]) -> dict[str, list[Window]]:
    """Return windows by length, by profile, between steps of power, and by fault."""
    by_length = {
        f"{low:g} to {high:g} s": [window for window in windows if low <= window.duration_s <= high]
        for low, high in pairwise(EDGES_S)
    }
    by_profile = {profile: [window for window in windows if window.profile == profile] for profile in PROFILES}
    by_fault = {fault: [window for window in windows if window.fault == fault] for fault in FAULTS}
    on_edges = {"on power edges": [window for window in windows if window.aligned]}
    return {name: some for name, some in (by_length | by_profile | on_edges | by_fault).items() if some}
