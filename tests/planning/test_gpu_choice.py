"""Which GPUs an experiment gets."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import pytest
from refused import raises
from seams.host import GpuActivity, Holder

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, PreflightError
from wattdock.host import Gpu, GpuInventory, GpuProcess, Link
from wattdock.planning import GpuChoice

if TYPE_CHECKING:
    from collections.abc import Mapping


def gpu(index: int, **more: Any) -> Gpu:
    known = {"index": index, "uuid": f"GPU-{index}{index}{index}", "name": "NVIDIA H200"}
    return Gpu.model_validate(known | more)


NONE = GpuInventory((), "no NVIDIA driver")
THREE = GpuInventory((gpu(0), gpu(1), gpu(2)))
CROWDED = GpuInventory((gpu(0, vram_total_bytes=10**11, vram_used_bytes=30 * 10**9),))
ANA = Holder("ana", 4242, "wattdock", "2026-11-21T08:00:00+00:00")


def indices_of(
    inventory: GpuInventory,
    visible: str | None = None,
    *,
    leases: Mapping[str, Holder] | None = None,
    weight_bytes: int | None = None,
    **settings: Any,
) -> list[int]:
    config = ExperimentConfig.model_validate(settings)
    gpus = GpuChoice(config, inventory, visible, leases or {}, weight_bytes).gpus()
    return [gpu.index for gpu in gpus]


def busy(*processes: GpuProcess) -> GpuActivity:
    return GpuActivity(None, None, None, None, None, processes=processes)


def links(**labels: int | str) -> tuple[Link, ...]:
    """Links by pairs of indices: `_01=18` NVLinks, or `_01="SYS"`."""
    return tuple(
        Link(
            a=gpu(int(pair[1])).uuid,
            b=gpu(int(pair[2])).uuid,
            nvlinks=label if isinstance(label, int) else 0,
            path=None if isinstance(label, int) else label,
        )
        for pair, label in labels.items()
    )


def process(kind: Literal["compute", "graphics"] = "compute") -> GpuProcess:
    return GpuProcess(99, kind, 40_100_000_000, "bob", "python")


@pytest.mark.parametrize(
    ("visible", "settings", "indices"),
    [
        (None, {}, [0]),
        (None, {"gpus": [2, 0]}, [2, 0]),
        (None, {"gpus": ["GPU-111"]}, [1]),
        (None, {"gpus": {"count": 2}}, [0, 1]),
        (None, {"accelerator": "cpu"}, []),
        ("1,2", {}, [1]),
        ("GPU-222", {}, [2]),
        ("", {}, []),
        ("-1", {}, []),
        ("NoDevFiles", {}, []),
        # CUDA ends the list at the first word that names no GPU, or several.
        ("2,7,0", {}, [2]),
        ("0,2,-1,1", {"gpus": {"count": 2}}, [0, 2]),
        ("GPU-2,GPU-9,GPU-0", {}, [2]),
        ("GPU-1,GPU-,GPU-0", {}, [1]),
        (" 1 ,2", {"gpus": [2]}, [2]),
        ("2gpu,1", {"gpus": {"count": 2}}, [1, 2]),
    ],
)
def test_what_was_asked_for_is_given_in_the_order_asked_of_those_that_a_scheduler_gave(
    visible: str | None, settings: dict[str, Any], indices: list[int]
) -> None:
    """By index, UUID, count, or the one that a section without parallelism needs; of CUDA_VISIBLE_DEVICES."""
    assert indices_of(THREE, visible, **settings) == indices


def test_a_machine_without_gpus_runs_on_the_cpu() -> None:
    """Where nothing else was asked for."""
    assert indices_of(NONE) == []


@pytest.mark.parametrize(
    ("inventory", "visible", "settings", "value"),
    [
        # Asking for a GPU and getting a CPU would be another measurement.
        (NONE, None, {"accelerator": "cuda"}, "none"),
        (NONE, None, {"gpus": [0]}, "none"),
        (NONE, None, {"gpus": {"count": 1}}, "none"),
        (THREE, "1", {"gpus": [0]}, "CUDA_VISIBLE_DEVICES=1"),
        (THREE, "0,7,1", {"gpus": [1]}, "CUDA_VISIBLE_DEVICES=0,7,1"),
        (THREE, "7,0", {}, "CUDA_VISIBLE_DEVICES=7,0"),
        (THREE, "0,0", {}, "CUDA_VISIBLE_DEVICES=0,0"),
        (THREE, "GPU-9", {}, "CUDA_VISIBLE_DEVICES=GPU-9"),
        # In the file's own words, not in Python's.
        (THREE, None, {"accelerator": "cpu", "gpus": {"count": 2}}, "{count: 2}"),
        (THREE, None, {"gpus": [0, "GPU-000"]}, "[0, 0]"),
        # A container does not see the processes of others.
        (CROWDED, None, {}, "30,000,000,000"),
    ],
)
def test_what_cannot_be_given_is_refused_with_the_reason(
    inventory: GpuInventory, visible: str | None, settings: dict[str, Any], value: str
) -> None:
    """Before anything is started."""
    with raises(PreflightError, value):
        indices_of(inventory, visible, **settings)


def test_a_gpu_that_does_not_answer_never_means_the_cpu() -> None:
    """A lost GPU is named; a named healthy one can still be used."""
    lost = GpuInventory((gpu(1),), unreadable=("GPU 0: GPU is lost",))
    with raises(PreflightError, "GPU", cause=Cause.GPU_LOST):
        indices_of(lost)
    with raises(PreflightError, "GPU", cause=Cause.GPU_LOST):
        indices_of(GpuInventory((), unreadable=("GPU 0: GPU is lost",)))
    with raises(PreflightError, "GPUs", "--accelerator cpu", cause=Cause.NO_GPU):
        indices_of(GpuInventory(()), gpus=[0])
    assert indices_of(lost, gpus=[1]) == [1]
    assert indices_of(lost, accelerator="cpu") == []


@pytest.mark.parametrize(
    ("inventory", "visible", "settings"),
    [
        (NONE, None, {}),
        (NONE, None, {"gpus": [0]}),
        (THREE, None, {"gpus": {"count": 4}}),
        (THREE, "7,0", {}),
        (GpuInventory((gpu(1),), unreadable=("GPU 0: GPU is lost",)), None, {}),
    ],
)
def test_who_requires_a_gpu_is_not_sent_to_the_cpu(
    inventory: GpuInventory, visible: str | None, settings: dict[str, Any]
) -> None:
    """As `--publishable` does: no figure of a CPU can be published."""
    with pytest.raises(PreflightError) as refused:
        indices_of(inventory, visible, accelerator="cuda", **settings)
    assert "measure where GPUs are free" in str(refused.value)
    assert "cpu" not in str(refused.value)


def test_a_busy_gpu_is_refused_by_the_name_of_its_process_and_skipped_where_another_is_free() -> None:
    """Somebody else's work would be metered, and disturbed."""
    found = GpuInventory((gpu(0), gpu(1)), activity={"GPU-000": busy(process()), "GPU-111": busy()})
    assert indices_of(found) == [1]
    with raises(PreflightError, "GPU", "99", "40.1", cause=Cause.GPU_BUSY):
        indices_of(found, gpus=[0])
    with raises(PreflightError, "GPUs", "99", cause=Cause.GPU_BUSY):
        indices_of(found, gpus={"count": 2})
    # A workstation's only GPU draws its screen; the doctor and the audit tell of it.
    assert indices_of(GpuInventory((gpu(0),), activity={"GPU-000": busy(process("graphics"))})) == [0]


@pytest.mark.parametrize("settings", [{}, {"gpus": [0]}])
def test_a_gpu_too_small_for_the_weights_is_refused_with_both_figures(settings: dict[str, Any]) -> None:
    """Before anything is loaded."""
    small = GpuInventory((gpu(0, vram_total_bytes=16 * 10**9, vram_used_bytes=10**9),))
    with raises(PreflightError, "15.0", "16.1", cause=Cause.GPU_BUSY):
        indices_of(small, weight_bytes=16_100_000_000, **settings)
    two = GpuInventory(tuple(gpu(i, vram_total_bytes=16 * 10**9, vram_used_bytes=10**9) for i in (0, 1)))
    assert indices_of(two, weight_bytes=24_000_000_000, gpus={"count": 2}) == [0, 1]
    with raises(PreflightError, "20.0", cause=Cause.GPU_BUSY):
        indices_of(two, gpus={"count": 1, "min_free_gb": 20})


def test_a_mig_gpu_and_its_slices_are_refused_with_the_reason() -> None:
    """A slice has no energy counter of its own."""
    found = GpuInventory((gpu(0, mig=True, mig_slices=("MIG-7",)), gpu(1)))
    assert indices_of(found) == [1]
    with raises(PreflightError, "MIG-7", cause=Cause.GPU_BUSY):
        indices_of(found, gpus=[0])
    with raises(PreflightError, "GPU", cause=Cause.MIG_SLICE):
        indices_of(found, gpus=["MIG-7"])
    with raises(PreflightError, "CUDA_VISIBLE_DEVICES=MIG-7", "MIG", cause=Cause.MIG_SLICE):
        indices_of(found, "MIG-7")


@pytest.mark.parametrize(
    ("name", "is_share"),
    [("NVIDIA A40-48Q", True), ("GRID A100-7-40C", True), ("GRID A100-1-5CME", True)]
    + [(board, False) for board in ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "NVIDIA A100-PG509-200")],
)
def test_a_vgpu_is_refused_since_the_counter_is_the_boards(name: str, *, is_share: bool) -> None:
    """A guest would get no energy, or that of all guests."""
    found = GpuInventory((gpu(0, name=name),))
    with raises(PreflightError, "vGPU", "whole board", cause=Cause.GPU_BUSY) if is_share else nullcontext():
        assert indices_of(found, gpus=[0]) == [0]


def test_a_leased_gpu_is_taken_only_by_who_is_ready_to_wait_and_finds_no_free_one() -> None:
    """The processes on it are its holder's and go with the lease."""
    leased = {"GPU-000": ANA}
    found = GpuInventory((gpu(0), gpu(1)), activity={"GPU-000": busy(process())})
    assert indices_of(found, leases=leased) == [1]
    assert indices_of(found, leases=leased, wait_s=5) == [1]
    assert indices_of(found, leases=leased, wait_s=5, gpus=[0]) == [0]
    assert indices_of(found, leases=leased, wait_s=5, gpus={"count": 2}) == [0, 1]
    with raises(PreflightError, "4242", "--wait", "SECONDS", cause=Cause.GPU_BUSY):
        indices_of(found, leases=leased, gpus=[0])


def test_a_group_is_of_one_model() -> None:
    """An H200 beside an L4 would wait for it; who wants that names them, and is warned."""
    found = GpuInventory((gpu(0), gpu(1, name="NVIDIA L4"), gpu(2)))
    assert indices_of(found, gpus={"count": 2}) == [0, 2]
    with raises(PreflightError, "NVIDIA L4"):
        indices_of(found, gpus={"count": 3})
    assert indices_of(found, gpus=[0, 1]) == [0, 1]
    assert "2 models" in found.warnings(found.gpus[:2])[0]


def test_the_best_linked_group_comes_first_and_a_slow_link_is_warned_of() -> None:
    """One slow link makes a group slow; among equals the lowest indices are taken; the pair and its way are named."""
    found = GpuInventory(
        tuple(map(gpu, range(4))), links=links(_01="SYS", _02=4, _03="SYS", _12="SYS", _13="NODE", _23=18)
    )
    assert indices_of(found, gpus={"count": 2}) == [2, 3]
    assert indices_of(found, gpus={"count": 1}) == [0]
    assert indices_of(GpuInventory(tuple(map(gpu, range(4)))), gpus={"count": 3}) == [0, 1, 2]
    found = GpuInventory((gpu(0), gpu(1)), links=links(_01="SYS"))
    (warning,) = found.warnings(found.gpus)
    assert "SYS" in warning
    assert GpuInventory(found.gpus, links=links(_01=18)).warnings(found.gpus) == ()
