from __future__ import annotations

from typing import TYPE_CHECKING

import fake_nvml
import pytest
from fake_nvml import FakeGpu

from wattdock.errors import PreflightError
from wattdock.host.gpus import inventory, list_gpus

if TYPE_CHECKING:
    from pathlib import Path


def test_every_gpu_is_listed_in_nvml_order_with_its_own_figures(library: Path) -> None:
    """Hosts mix GPUs; nothing is taken from the first one for all."""
    gpus = [
        FakeGpu(uuid=fake_nvml.uuid_of(1)),
        FakeGpu(uuid=fake_nvml.uuid_of(2), name="NVIDIA L4", memory_total_bytes=24_000_000_000, memory_used_bytes=5,
                ecc=0, power_limit_w=60, power_limit_default_w=72, compute_major=8, compute_minor=9,
                sm_clock_max_mhz=2040),
    ]  # fmt: skip
    with fake_nvml.loaded(library, gpus=gpus):
        h200, l4 = list_gpus()
    assert (h200.index, h200.uuid, h200.name) == (0, fake_nvml.uuid_of(1), "NVIDIA H200")
    assert (h200.vram_total_bytes, h200.ecc, h200.mig, h200.persistence) == (150_754_820_096, True, False, True)
    assert (h200.driver_version, h200.cuda_driver_version, h200.pci_bus_id) == (
        "580.159.03",
        "13.0",
        "00000000:10:00.0",
    )
    assert (l4.index, l4.name, l4.vram_used_bytes, l4.ecc) == (1, "NVIDIA L4", 5, False)
    assert (l4.power_limit_w, l4.power_limit_default_w, l4.compute_capability) == (60.0, 72.0, "8.9")
    assert (l4.sm_clock_max_mhz, l4.memory_clock_max_mhz) == (2040, 3201)


def test_what_a_gpu_does_not_support_is_none_not_zero(library: Path) -> None:
    """Consumer cards have no ECC and no MIG."""
    with fake_nvml.loaded(library, gpus=[FakeGpu(unsupported="ecc mig power_limit memory clocks")]):
        (gpu,) = list_gpus()
    assert (gpu.ecc, gpu.mig, gpu.power_limit_w, gpu.vram_total_bytes, gpu.sm_clock_max_mhz) == (None,) * 5


@pytest.mark.parametrize(
    ("init_error", "said"), [(12, "was not found"), (9, "no NVIDIA driver is loaded"), (0, "no GPU")]
)
def test_a_machine_without_gpu_says_why(library: Path, init_error: int, said: str) -> None:
    """No GPU is a normal machine, not an error."""
    with fake_nvml.loaded(library, init_error=init_error):
        found = inventory()
    assert found.gpus == ()
    assert found.reason is not None
    assert said in found.reason


def test_a_driver_that_cannot_be_talked_to_is_an_error(library: Path) -> None:
    """A mismatched driver must not pass for a machine without GPUs."""
    with fake_nvml.loaded(library, init_error=18), pytest.raises(PreflightError, match="cannot be initialised"):
        list_gpus()


def test_a_lost_gpu_is_named_and_hides_no_other(library: Path) -> None:
    """One GPU off the bus must not take the inventory with it."""
    gpus = [FakeGpu(uuid=fake_nvml.uuid_of(1), lost_at_s=0), FakeGpu(uuid=fake_nvml.uuid_of(2))]
    with fake_nvml.loaded(library, gpus=gpus):
        found = inventory()
    assert [gpu.uuid for gpu in found.gpus] == [fake_nvml.uuid_of(2)]
    assert len(found.unreadable) == 1
    assert "GPU 0" in found.unreadable[0]
