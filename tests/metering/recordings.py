"""Timelines of simulated GPUs, and the energy of their spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu
from seams.metering import LagModel, NvmlSource

from wattdock.metering import EnergyCurve, Meter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.metering import GpuTimeline, Timeline


ORIGIN_NS = fake_nvml.VIRTUAL_ORIGIN_NS
S = 1_000_000_000
# Of a driver that keeps no samples of power.
NO_SAMPLES = "samples"
NO_LAG = LagModel(mean_s=0.0, std_s=0.0)


def only(timeline: Timeline) -> GpuTimeline:
    (gpu,) = timeline.gpus.values()
    return gpu


def energy_of(gpu: GpuTimeline, start_s: float, end_s: float) -> tuple[float | None, float | None, str | None]:
    got = EnergyCurve(gpu, NO_LAG).between(ORIGIN_NS + int(start_s * S), ORIGIN_NS + int(end_s * S))
    return got.energy_j, got.timing_j, got.reason


def recorded(
    library: Path, gpus: Sequence[FakeGpu], until_s: float, *, used: Sequence[str] | None = None, **faults: Any
) -> Timeline:
    with fake_nvml.loaded(library, gpus=gpus, **faults) as fake:
        meter = Meter(NvmlSource(), clock=fake, used=used)
        meter.start()
        return meter.stop(ORIGIN_NS + int(until_s * S))


def kinds(gpu: GpuTimeline) -> set[str]:
    return {event.kind for event in gpu.events}


def known(gpu: GpuTimeline, *spans_s: tuple[float, float]) -> list[bool]:
    """Return whether spans of an 80 W GPU have energy, and see that it is right."""
    curve = EnergyCurve(gpu)
    energies = [curve.between(ORIGIN_NS + int(start_s * S), ORIGIN_NS + int(end_s * S)) for start_s, end_s in spans_s]
    for energy in energies:
        assert energy.energy_j == (energy.energy_j and pytest.approx(80 * energy.duration_s, rel=0.01))
    return [energy.energy_j is not None for energy in energies]
