"""Doctor's checks on GPUs, over the stand-in for the driver's library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu, FakeProcess
from seams.doctor import DRIVER, EACH_GPU, ExaminedGpu, energy_counter
from seams.metering import Ticks

from wattdock.host import GpuInventory
from wattdock.metering import GpuTimeline, MeterEvent, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from wattdock.analysis import Check

ONE = fake_nvml.uuid_of(1)
# Four reads, of 3, 4, 5 and 9 ms.
TICKS = Ticks(*np.array([[0, 100], [3, 105], [6, 109], [10, 118], [0, 0]], dtype=np.int64) * 1_000_000)


NO_TIMELINE = Timeline("none", 0, 1)


def inventory_of(library: Path, *gpus: FakeGpu, init_error: int = 0) -> GpuInventory:
    with fake_nvml.loaded(library, gpus=gpus, init_error=init_error):
        return GpuInventory.here()


def not_passed(checks: Iterable[Check]) -> dict[str, str]:
    """Status by name of the checks that do not pass; each says what to do."""
    bad = [check for check in checks if check.status != "pass"]
    assert all(check.remedy for check in bad)
    return {check.name: check.status for check in bad}


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (FakeGpu(), {}),
        (FakeGpu(processes=(FakeProcess(os.getpid()),)), {"in use": "fail"}),
        (FakeGpu(processes=(FakeProcess(os.getpid(), kind="g"),)), {"in use": "warn"}),
        (FakeGpu(memory_used_bytes=40_000_000_000), {"in use": "fail"}),
        (FakeGpu(mig=1, mig_slices=2), {"whole board": "fail"}),
        (FakeGpu(name="NVIDIA A40-48Q"), {"whole board": "fail"}),
        (FakeGpu(persistence=0), {"persistence": "warn"}),
        (FakeGpu(power_limit_w=450), {"power limit": "warn"}),
        (FakeGpu(unsupported="power_limit"), {"power limit": "warn"}),
        (FakeGpu(clocks_limited=1), {"clocks": "warn"}),
        (FakeGpu(ecc=0), {}),
        (FakeGpu(unsupported="ecc mig persistence pcie reasons"), {}),
    ],
)
def test_what_spoils_or_colours_a_measurement_is_named(library: Path, gpu: FakeGpu, expected: dict[str, str]) -> None:
    """Each setting by its own line, and no other; the recording is another test's."""
    host_gpus = inventory_of(library, gpu)
    checks = not_passed(EACH_GPU.run(ExaminedGpu(host_gpus.gpus[0], host_gpus, NO_TIMELINE), prefix="GPU 0 "))
    assert checks.pop("GPU 0 energy counter") == "fail"
    assert checks == {f"GPU 0 {name}": status for name, status in expected.items()}


def test_the_driver_is_named_and_without_one_there_is_no_energy(library: Path) -> None:
    """The reason is the driver's own."""
    [driver] = DRIVER.run(inventory_of(library, FakeGpu()))
    assert (driver.status, driver.figure) == ("pass", "580.159.03, NVML 13.580.159.03, CUDA up to 13.0, 1 GPU")
    [missing] = DRIVER.run(inventory_of(library, init_error=9))
    assert (missing.status, "libnvidia-ml.so.1" in missing.figure) == ("fail", True)


@pytest.mark.parametrize(
    ("period_s", "busy", "source", "status"),
    [
        (0.1, 0.1, "counter", "pass"),
        (2.0, 0.1, "counter", "warn"),
        (0.1, 0.7, "counter", "warn"),
        (None, 0.1, "counter", "fail"),
        (None, 0.1, None, "fail"),
    ],
)
def test_a_counter_is_judged_by_its_period_and_its_cost(
    library: Path, period_s: float | None, busy: float, source: str | None, status: str
) -> None:
    """Without a counter there is no publishable energy."""
    host_gpus = inventory_of(library, FakeGpu(uuid=ONE))
    gpu = GpuTimeline(
        uuid=ONE,
        energy_source=source,  # type: ignore[arg-type]
        ticks=TICKS,
        events=(MeterEvent(0, "not_supported", reading="energy counter", said="Not Supported"),),
        period_s=period_s,
        busy_fraction=busy,
    )
    outcome = energy_counter(ExaminedGpu(host_gpus.gpus[0], host_gpus, Timeline("nvml", 0, 1, {ONE: gpu})))
    assert outcome.status == status
    assert ("4.5 ms" in outcome.figure and "9.0" in outcome.figure) == (status != "fail")
