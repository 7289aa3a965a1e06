"""What NVML says of GPUs, and links between them as `nvidia-smi topo -m` would show them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu, FakeProcess, constant
from refused import raises
from seams.host import user_name

from wattdock.errors import Cause, PreflightError
from wattdock.host import GpuInventory

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND, THIRD = (fake_nvml.uuid_of(number) for number in (1, 2, 3))


def seen(library: Path, *gpus: FakeGpu) -> GpuInventory:
    with fake_nvml.loaded(library, gpus=gpus):
        return GpuInventory.here()


def labels(found: GpuInventory) -> list[str]:
    return [link.label for link in found.links]


def test_every_gpu_is_listed_in_nvml_order_with_its_own_figures(library: Path) -> None:
    """Hosts mix GPUs; nothing is taken from the first one for all."""
    gpus = [
        FakeGpu(uuid=FIRST),
        FakeGpu(uuid=SECOND, name="NVIDIA L4", memory_total_bytes=24_000_000_000, memory_used_bytes=5,
                ecc=0, power_limit_w=60, power_limit_default_w=72, compute_major=8, compute_minor=9,
                sm_clock_max_mhz=2040),
    ]  # fmt: skip
    h200, l4 = seen(library, *gpus).gpus
    assert (h200.index, h200.uuid, h200.name) == (0, FIRST, "NVIDIA H200")
    assert (h200.vram_total_bytes, h200.ecc, h200.mig, h200.persistence) == (150_754_820_096, True, False, True)
    assert (h200.driver_version, h200.cuda_driver_version) == ("580.159.03", "13.0")
    assert (l4.index, l4.name, l4.vram_used_bytes, l4.ecc) == (1, "NVIDIA L4", 5, False)
    assert (l4.power_limit_w, l4.power_limit_default_w) == (60.0, 72.0)


def test_what_the_driver_keeps_for_itself_is_not_in_use(library: Path) -> None:
    """As nvidia-smi tells them apart."""
    [gpu] = seen(library, FakeGpu(memory_total_bytes=100, memory_used_bytes=30, memory_reserved_bytes=20)).gpus
    assert (gpu.vram_used_bytes, gpu.vram_reserved_bytes, gpu.vram_free_bytes) == (30, 20, 50)


def test_the_power_state_is_told_by_names_and_what_the_driver_does_not_know_is_none(library: Path) -> None:
    """A B200 in Max-Q beside one at its default, and an H200, which knows no profile; bit 40 is newer than pynvml."""
    max_q = FakeGpu(
        uuid=FIRST,
        vbios="97.00.82.00.19",
        power_profiles_requested=(1, 6, 40),
        power_profiles=(6, 40),
        power_smoothing=1,
        power_smoothing_profile=2,
    )
    default = FakeGpu(uuid=SECOND, power_profiles_requested=(), power_profiles=(), power_smoothing=0, persistence=0)
    b200, idle, h200 = seen(library, max_q, default, FakeGpu(uuid=THIRD)).gpus
    assert (b200.vbios_version, h200.vbios_version) == ("97.00.82.00.19", "96.00.A5.00.1A")
    assert b200.power_profiles_requested == ("max-q", "llm-inference", "profile 40")
    assert b200.power_profiles == ("llm-inference", "profile 40")
    assert (b200.power_smoothing, b200.power_smoothing_profile) == (True, 2)
    assert (idle.power_profiles_requested, idle.power_profiles, idle.power_smoothing) == ((), (), False)
    assert (idle.persistence, h200.persistence) == (False, True)
    unknown = h200.power_profiles_requested, h200.power_profiles, h200.power_smoothing, h200.power_smoothing_profile
    assert unknown == (None,) * 4


def test_a_driver_without_power_profiles_shows_its_gpus(library: Path) -> None:
    """Drivers before 570 lack the function."""
    gpu = FakeGpu(power_profiles_requested=(1,), power_profiles=(1,), unsupported="vbios")
    lacking = ["nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"]
    with fake_nvml.loaded(library, gpus=[gpu], lacking=lacking):
        [older] = GpuInventory.here().gpus
    assert (older.power_profiles, older.vbios_version, older.ecc) == (None, None, True)


def test_a_lost_gpu_is_named_and_hides_no_other(library: Path) -> None:
    """One GPU off the bus must not take the inventory with it."""
    gpus = [FakeGpu(uuid=FIRST, lost_at_s=0), FakeGpu(uuid=SECOND)]
    found = seen(library, *gpus)
    assert [gpu.uuid for gpu in found.gpus] == [SECOND]
    assert len(found.unreadable) == 1
    assert "GPU 0" in found.unreadable[0]


def test_what_a_gpu_does_now_is_read_with_its_processes_and_their_owners(library: Path) -> None:
    """A process of this machine has a name; one that /proc does not show has none."""
    here, elsewhere = FakeProcess(os.getpid(), memory_bytes=7_000_000_000), FakeProcess(4_194_303, kind="g")
    gpu = FakeGpu(profile=(constant(650.0),), processes=(here, elsewhere), utilization_percent=73, clocks_limited=1)
    (now,) = seen(library, gpu).activity.values()
    assert (now.power_w, now.utilization_percent, now.temperature_c, now.sm_clock_mhz) == (650, 73, 40, 1980)
    assert now.clocks_limited is True
    ours, other = now.processes
    assert (ours.pid, ours.kind, ours.memory_bytes, ours.user) == (os.getpid(), "compute", 7_000_000_000, user_name())
    assert ours.command
    assert (other.kind, other.user, other.command) == ("graphics", None, None)
    assert "unknown user" in str(other)


def test_mig_slices_are_named(library: Path) -> None:
    """NVML counts places; only those that hold a device are slices."""
    sliced, whole = seen(library, FakeGpu(mig=1, mig_slices=2), FakeGpu(uuid=SECOND)).gpus
    assert sliced.mig_slices == ("MIG-00", "MIG-01")
    assert (whole.mig, whole.mig_slices) == (False, ())


def test_what_is_only_good_to_know_never_hides_a_gpu(library: Path) -> None:
    """Whatever the driver does not tell of a GPU, the GPU is there."""
    failing = FakeGpu(failing="affinity pcie clocks reasons utilization topology p2p", failing_from_s=0)
    found = seen(library, failing, FakeGpu(uuid=SECOND))
    gpu = found.gpus[0]
    assert len(found.gpus) == 2
    assert (gpu.pcie_width, found.activity[gpu.uuid].sm_clock_mhz) == (None, None)
    assert found.links[0].label == "?"


def test_links_that_end_at_the_other_gpu_are_counted_per_pair(library: Path) -> None:
    """Four NVLinks to one neighbour, two to the other, none between these two."""
    found = seen(
        library,
        FakeGpu(uuid=FIRST, nvlink_peers=(1, 1, 1, 1, 2, 2)),
        FakeGpu(uuid=SECOND, nvlink_peers=(0, 0, 0, 0)),
        FakeGpu(uuid=THIRD, nvlink_peers=(0, 0)),
    )
    assert [(link.a, link.b) for link in found.links] == [(FIRST, SECOND), (FIRST, THIRD), (SECOND, THIRD)]
    assert labels(found) == ["NV4", "NV2", "PIX"]
    assert [gpu.nvlinks for gpu in found.gpus] == [6, 4, 2]


def test_behind_a_switch_a_pair_has_all_the_links_that_both_have(library: Path) -> None:
    """No link of a GPU ends at another one there."""
    found = seen(library, FakeGpu(uuid=FIRST, nvlink_peers=(-1,) * 18), FakeGpu(uuid=SECOND, nvlink_peers=(-1,) * 18))
    assert labels(found) == ["NV18"]


@pytest.mark.parametrize(
    ("other", "label", "slow"),
    [
        (FakeGpu(uuid=SECOND), "PIX", False),
        (FakeGpu(uuid=SECOND, pcie_switch=1), "NODE", True),
        (FakeGpu(uuid=SECOND, numa_node=1), "SYS", True),
    ],
)
def test_without_nvlink_the_way_over_pcie_is_named(library: Path, other: FakeGpu, label: str, slow: bool) -> None:
    """A way through the CPU is slow, one through a PCIe switch is not."""
    found = seen(library, FakeGpu(uuid=FIRST), other)
    assert labels(found) == [label]
    assert bool(found.warnings(found.gpus)) is slow


def test_what_a_gpu_does_not_support_is_none_not_zero(library: Path) -> None:
    """Consumer cards have no ECC and no MIG; an unknown link is neither fast nor slow, and hides no GPU."""
    silent = "ecc mig power_limit memory clocks topology p2p nvlink pcie affinity"
    found = seen(library, FakeGpu(uuid=FIRST, unsupported=silent), FakeGpu(uuid=SECOND, unsupported=silent))
    gpu = found.gpus[0]
    assert (gpu.ecc, gpu.mig, gpu.power_limit_w, gpu.vram_total_bytes) == (None,) * 4
    assert labels(found) == ["?"]
    assert found.warnings(found.gpus) == ()
    assert gpu.pcie_width is None


def test_where_a_gpu_sits_is_read(library: Path) -> None:
    """PCIe as it is and as it could be."""
    (gpu,) = seen(library, FakeGpu(pcie_generation=1, pcie_width=8)).gpus
    assert (gpu.pcie_generation, gpu.pcie_width) == (1, 8)
    assert gpu.nvlinks == 0


@pytest.mark.parametrize(
    ("init_error", "said"), [(12, "was not found"), (9, "no NVIDIA driver is loaded"), (0, "no GPU")]
)
def test_a_machine_without_gpu_says_why_and_a_broken_driver_does_not_pass_for_one(
    library: Path, init_error: int, said: str
) -> None:
    """No GPU is a normal machine, not an error; a driver that cannot be talked to is one."""
    with fake_nvml.loaded(library, init_error=init_error):
        found = GpuInventory.here()
    assert (found.gpus, said in (found.reason or "")) == ((), True)
    for error in ("init_error", "count_error"):
        faults: dict[str, Any] = {error: 18}
        words = "NVML", "driver was updated", "restart"
        with fake_nvml.loaded(library, **faults), raises(PreflightError, *words, cause=Cause.NO_DRIVER):
            GpuInventory.here()


def test_a_driver_that_cannot_be_closed_shows_its_gpus(library: Path) -> None:
    """Everything was read before."""
    with fake_nvml.loaded(library, gpus=[FakeGpu()], shutdown_error=999):
        assert len(GpuInventory.here().gpus) == 1
