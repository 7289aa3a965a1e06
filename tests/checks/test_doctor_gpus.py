"""What doctor says of GPUs, over the stand-in for the driver's library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu, FakeProcess

from wattdock.checks.doctor_gpus import counter_check, driver_check, gpu_checks, group_checks
from wattdock.host import inventory
from wattdock.metering.timeline import GpuTimeline, MeterEvent, Ticks, Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.analysis.result import Check
    from wattdock.host import GpuInventory

ONE, TWO = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
# Four reads, of 3, 4, 5 and 9 ms.
TICKS = Ticks(*np.array([[0, 100], [3, 105], [6, 109], [10, 118], [0, 0]], dtype=np.int64) * 1_000_000)


def seen(library: Path, *gpus: FakeGpu, init_error: int = 0) -> GpuInventory:
    with fake_nvml.loaded(library, gpus=gpus, init_error=init_error):
        return inventory()


def bad(checks: list[Check]) -> dict[str, str]:
    """Status by name of the checks that do not pass; each says what to do."""
    wrong: dict[str, str] = {check.name: check.status for check in checks if check.status != "pass"}
    assert all(check.remedy for check in checks if check.name in wrong)
    return wrong


def test_a_gpu_as_it_should_be_has_only_checks_that_pass(library: Path) -> None:
    """An idle H200 at its own limit."""
    found = seen(library, FakeGpu())
    assert driver_check(found).status == "pass"
    assert driver_check(found).figure == "580.159.03, NVML 13.580.159.03, CUDA up to 13.0, 1 GPU"
    assert bad(list(gpu_checks(found.gpus[0], found))) == {}


@pytest.mark.parametrize(
    ("gpu", "wrong"),
    [
        (FakeGpu(processes=(FakeProcess(os.getpid()),)), {"GPU 0 in use": "fail"}),
        (FakeGpu(processes=(FakeProcess(os.getpid(), kind="g"),)), {"GPU 0 in use": "warn"}),
        (FakeGpu(memory_used_bytes=40_000_000_000), {"GPU 0 in use": "fail"}),
        (FakeGpu(mig=1, mig_slices=2), {"GPU 0 MIG": "fail"}),
        (FakeGpu(persistence=0), {"GPU 0 persistence": "warn"}),
        (FakeGpu(power_limit_w=450), {"GPU 0 power limit": "warn"}),
        (FakeGpu(unsupported="power_limit"), {"GPU 0 power limit": "warn"}),
        (FakeGpu(clocks_limited=1), {"GPU 0 clocks": "warn"}),
        (FakeGpu(pcie_width=8), {"GPU 0 PCIe": "warn"}),
        (FakeGpu(ecc=0), {}),
        (FakeGpu(unsupported="ecc mig persistence pcie reasons"), {}),
    ],
)
def test_what_spoils_or_colours_a_measurement_is_found(library: Path, gpu: FakeGpu, wrong: dict[str, str]) -> None:
    """Each by its own line, and nothing else."""
    found = seen(library, gpu)
    assert bad(list(gpu_checks(found.gpus[0], found))) == wrong


def test_no_driver_means_no_energy(library: Path) -> None:
    """The reason is the driver's own."""
    check = driver_check(seen(library, init_error=9))
    assert check.status == "fail"
    assert "no NVIDIA driver is loaded" in check.figure


@pytest.mark.parametrize(
    ("gpus", "wrong"),
    [
        ((FakeGpu(uuid=ONE, nvlink_peers=(1,) * 18), FakeGpu(uuid=TWO, nvlink_peers=(0,) * 18, numa_node=1)), {}),
        ((FakeGpu(uuid=ONE), FakeGpu(uuid=TWO)), {}),
        ((FakeGpu(uuid=ONE), FakeGpu(uuid=TWO, numa_node=1)), {"GPU group": "warn", "peer access": "warn"}),
        ((FakeGpu(uuid=ONE), FakeGpu(uuid=TWO, name="NVIDIA L4")), {"GPU group": "warn"}),
        (
            tuple(FakeGpu(uuid=uuid, name="NVIDIA GeForce RTX 5090", compute_major=12) for uuid in (ONE, TWO)),
            {"tensor parallelism": "warn"},
        ),
        ((FakeGpu(uuid=ONE, name="NVIDIA GeForce RTX 5090", compute_major=12),), {}),
    ],
)
def test_links_that_make_a_bad_group_are_found(library: Path, gpus: tuple[FakeGpu, ...], wrong: dict[str, str]) -> None:
    """Slow ways, missing peer access, mixed models, and what is known not to work."""
    found = seen(library, *gpus)
    assert bad(list(group_checks(found.gpus, found))) == wrong


@pytest.mark.parametrize(
    ("period_s", "busy", "source", "status"),
    [
        (0.1, 0.1, "counter", "pass"),
        (2.0, 0.1, "counter", "warn"),
        (0.1, 0.7, "counter", "warn"),
        (None, 0.1, "counter", "fail"),
        (None, 0.1, "integrated_power", "fail"),
    ],
)
def test_a_counter_is_judged_by_its_period_and_its_cost(
    library: Path, period_s: float | None, busy: float, source: str, status: str
) -> None:
    """Without one there is no publishable energy."""
    found = seen(library, FakeGpu(uuid=ONE))
    gpu = GpuTimeline(
        uuid=ONE,
        energy_source=source,  # type: ignore[arg-type]
        ticks=TICKS,
        events=(MeterEvent(0, "not_supported", "energy counter: Not Supported"),),
        period_s=period_s,
        busy_fraction=busy,
    )
    check = counter_check(found.gpus[0], Timeline("nvml", 0, 1, {ONE: gpu}))
    assert (check.name, check.status) == ("GPU 0 energy counter", status)
    assert ("one read takes 4.5 ms (longest 9.0)" in check.figure) == (status != "fail")
