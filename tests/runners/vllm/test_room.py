"""Whether a model fits the GPUs there are, told before vLLM starts; without vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.runner_process import VLLM_FOLDER

from wattdock_runner.backend import Gpu
from wattdock_runner.errors import InvalidRequest, OutOfMemory

if TYPE_CHECKING:
    from types import ModuleType

H200 = Gpu("GPU-a", "NVIDIA H200", 150_754_820_096)
TP_4: dict[str, object] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, which imports no vLLM."""
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    import wattdock_vllm_room

    return wattdock_vllm_room


def test_weights_larger_than_a_gpu_are_refused_with_both_sizes(room: ModuleType) -> None:
    """70 billion parameters of 4 bytes do not fit one H200; a quarter of them fits each of four."""
    with pytest.raises(OutOfMemory, match=r"take 280\.0 GB on each of 1 GPU\(s\), which have 150\.8 GB; split"):
        room.require_room(280_000_000_000, {}, [H200])
    room.require_room(280_000_000_000, TP_4, [H200] * 4)


def test_a_split_over_more_gpus_than_there_are_is_refused(room: ModuleType) -> None:
    """Two times two parts need four."""
    with pytest.raises(InvalidRequest, match="is 4, and vLLM sees 2 GPUs"):
        room.require_room(None, TP_4, [H200] * 2)


def test_what_is_unknown_is_left_to_vllm(room: ModuleType) -> None:
    """Neither an unknown size of the weights nor of a GPU is zero."""
    room.require_room(None, {}, [H200])
    room.require_room(280_000_000_000, {}, [Gpu("GPU-b", "unknown")])
