"""Which GPUs an experiment gets."""

from __future__ import annotations

from typing import Any

import pytest

from wattdock.config.experiment import ExperimentConfig
from wattdock.errors import PreflightError
from wattdock.host.gpus import GpuInfo, GpuInventory
from wattdock.host.selection import Surroundings, choose_gpus


def gpu(index: int) -> GpuInfo:
    facts: dict[str, Any] = dict.fromkeys(GpuInfo.__dataclass_fields__)
    return GpuInfo(
        **facts | {"index": index, "uuid": f"GPU-{index}{index}{index}", "name": "NVIDIA H200", "mig_slices": ()}
    )


THREE = GpuInventory((gpu(0), gpu(1), gpu(2)))
NONE = GpuInventory((), "no NVIDIA driver")


def chosen(found: GpuInventory, visible: str | None = None, **settings: Any) -> list[int]:
    config = ExperimentConfig.model_validate(settings)
    return [one.index for one in choose_gpus(config, found, Surroundings(visible))]


@pytest.mark.parametrize(
    ("settings", "indices"),
    [
        ({}, [0]),
        ({"gpus": [2, 0]}, [2, 0]),
        ({"gpus": ["GPU-111"]}, [1]),
        ({"gpus": {"count": 2}}, [0, 1]),
        ({"accelerator": "cpu"}, []),
    ],
)
def test_what_was_asked_for_is_given_in_the_order_asked(settings: dict[str, Any], indices: list[int]) -> None:
    """By index, UUID, count, or the one that a section without parallelism needs."""
    assert chosen(THREE, **settings) == indices


def test_a_machine_without_gpus_runs_on_the_cpu_only_where_nothing_else_was_asked() -> None:
    """Asking for a GPU and getting a CPU would be another measurement."""
    assert chosen(NONE) == []
    for settings in ({"accelerator": "cuda"}, {"gpus": [0]}, {"gpus": {"count": 1}}):
        with pytest.raises(PreflightError, match="none"):
            chosen(NONE, **settings)


@pytest.mark.parametrize(("visible", "indices"), [("1,2", [1]), ("GPU-222", [2]), ("", [])])
def test_a_scheduler_s_choice_is_respected(visible: str, indices: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES says which GPUs of a shared machine are the caller's."""
    assert chosen(THREE, visible) == indices


def test_a_gpu_that_the_scheduler_did_not_give_is_refused_by_name() -> None:
    """The message names the variable that hides it."""
    with pytest.raises(PreflightError, match="CUDA_VISIBLE_DEVICES=1"):
        chosen(THREE, "1", gpus=[0])


def test_a_gpu_that_does_not_answer_never_means_the_cpu() -> None:
    """A lost GPU is named; a named healthy one can still be used."""
    lost = GpuInventory((gpu(1),), unreadable=("GPU 0: GPU is lost",))
    with pytest.raises(PreflightError, match="GPU is lost"):
        chosen(lost)
    with pytest.raises(PreflightError, match="GPU is lost"):
        chosen(GpuInventory((), unreadable=("GPU 0: GPU is lost",)))
    assert chosen(lost, gpus=[1]) == [1]
    assert chosen(lost, accelerator="cpu") == []


def test_a_gpu_named_twice_is_refused() -> None:
    """By index and by UUID it is still one GPU."""
    with pytest.raises(PreflightError, match="twice"):
        chosen(THREE, gpus=[0, "GPU-000"])
