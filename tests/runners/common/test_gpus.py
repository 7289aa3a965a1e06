"""Whether a model fits the GPUs there are, told before an engine starts."""

from __future__ import annotations

import pytest

from wattdock_runner.backend import Gpu
from wattdock_runner.errors import InvalidRequest, OutOfMemory
from wattdock_runner.gpus import require_room

H200 = Gpu("GPU-a", "NVIDIA H200", 150_754_820_096)
WHOLE = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
IN_FOUR = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}


def test_weights_larger_than_a_gpu_are_refused_with_both_sizes() -> None:
    """70 billion parameters of 4 bytes do not fit one H200; a quarter of them fits each of four."""
    with pytest.raises(OutOfMemory, match=r"take 280\.0 GB on each of 1 GPU\(s\), which have 150\.8 GB; split"):
        require_room(280_000_000_000, WHOLE, [H200], "vLLM")
    require_room(280_000_000_000, IN_FOUR, [H200] * 4, "vLLM")


def test_a_split_over_more_gpus_than_there_are_is_refused() -> None:
    """Two times two parts need four; the message has the sizes by the names that were set."""
    names = "tensor_parallel_size × pipeline_parallel_size"
    with pytest.raises(InvalidRequest, match=f"^{names} is 4, and vLLM sees 2 GPUs$"):
        require_room(None, IN_FOUR, [H200] * 2, "vLLM")


def test_what_is_unknown_is_left_to_the_engine() -> None:
    """Neither an unknown size of the weights nor of a GPU is zero."""
    require_room(None, WHOLE, [H200], "vLLM")
    require_room(280_000_000_000, WHOLE, [Gpu("GPU-b", "unknown")], "vLLM")
