"""Links between GPUs, as `nvidia-smi topo -m` would show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fake_nvml
import pytest
from fake_nvml import FakeGpu

from wattdock.host import inventory

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.host import GpuInventory

ONE, TWO, THREE = (fake_nvml.uuid_of(number) for number in (1, 2, 3))


def seen(library: Path, *gpus: FakeGpu) -> GpuInventory:
    with fake_nvml.loaded(library, gpus=gpus):
        return inventory()


def labels(found: GpuInventory) -> list[str]:
    return [link.label for link in found.links]


def test_links_that_end_at_the_other_gpu_are_counted_per_pair(library: Path) -> None:
    """Four NVLinks to one neighbour, two to the other, none between these two."""
    found = seen(
        library,
        FakeGpu(uuid=ONE, nvlink_peers=(1, 1, 1, 1, 2, 2)),
        FakeGpu(uuid=TWO, nvlink_peers=(0, 0, 0, 0)),
        FakeGpu(uuid=THREE, nvlink_peers=(0, 0)),
    )
    assert [(link.a, link.b) for link in found.links] == [(ONE, TWO), (ONE, THREE), (TWO, THREE)]
    assert labels(found) == ["NV4", "NV2", "PIX"]
    assert [gpu.nvlinks for gpu in found.gpus] == [6, 4, 2]
    assert found.gpus[0].nvlink_version == "4.0"


def test_behind_a_switch_a_pair_has_all_the_links_that_both_have(library: Path) -> None:
    """No link of a GPU ends at another one there."""
    found = seen(library, FakeGpu(uuid=ONE, nvlink_peers=(-1,) * 18), FakeGpu(uuid=TWO, nvlink_peers=(-1,) * 18))
    assert labels(found) == ["NV18"]
    assert found.links[0].peer_access is True


@pytest.mark.parametrize(
    ("other", "label", "slow"),
    [
        (FakeGpu(uuid=TWO), "PIX", False),
        (FakeGpu(uuid=TWO, pcie_switch=1), "NODE", True),
        (FakeGpu(uuid=TWO, numa_node=1), "SYS", True),
    ],
)
def test_without_nvlink_the_way_over_pcie_is_named(library: Path, other: FakeGpu, label: str, slow: bool) -> None:
    """A way through the CPU is slow, one through a PCIe switch is not."""
    found = seen(library, FakeGpu(uuid=ONE), other)
    assert labels(found) == [label]
    assert bool(found.slow_links({ONE, TWO})) is slow


def test_a_driver_that_says_nothing_of_links_leaves_them_unknown(library: Path) -> None:
    """Unknown is neither a fast nor a slow link, and hides no GPU."""
    silent = "topology p2p nvlink pcie affinity"
    found = seen(library, FakeGpu(uuid=ONE, unsupported=silent), FakeGpu(uuid=TWO, unsupported=silent))
    assert labels(found) == ["?"]
    assert found.slow_links({ONE, TWO}) == ()
    gpu = found.gpus[0]
    assert (gpu.pcie_width, gpu.numa_node, gpu.cpus, found.links[0].peer_access) == (None,) * 4
