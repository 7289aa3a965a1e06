"""What a vLLM worker keeps of its memory profile, in every supported version; without vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import VLLM_FOLDER

if TYPE_CHECKING:
    from types import ModuleType

TESTS = Path(__file__).parents[2]
KEPT = json.loads((TESTS / "facts/vllm-memory.json").read_text(encoding="utf-8"))
VERSIONS = json.loads((TESTS / "facts/vllm.json").read_text(encoding="utf-8"))["versions"]
GB = 10**9


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, which imports no vLLM."""
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    monkeypatch.delenv("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", raising=False)
    import wattdock_vllm_processes

    return wattdock_vllm_processes


def worker_of(version: str) -> SimpleNamespace:
    """Return a worker with the attributes of that version: 16 GB of weights, activations up to 2, graphs 1, other 3."""
    new = "total_consumed" in KEPT[version]["gpu_worker.py"]
    values = {
        "available_kv_cache_memory_bytes": 100 * GB,
        "cudagraph_memory_estimate": 1 * GB,
        "init_snapshot": SimpleNamespace(total_memory=150 * GB),
        "non_torch_memory": 3 * GB,
        # Later versions add graphs to the one, and weights to the other.
        "peak_activation_memory": 3 * GB if new else 2 * GB,
        "requested_memory": 122 * GB,
        "total_consumed": 19 * GB,
    }
    kept = {name: value for name, value in values.items() if name in KEPT[version]["gpu_worker.py"]}
    return SimpleNamespace(**kept, model_runner=SimpleNamespace(model_memory_usage=16 * GB))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_version_tells_the_same_parts(memory: ModuleType, version: str) -> None:
    """They keep them under other names, and add them up differently."""
    assert all("model_memory_usage" in names for place, names in KEPT[version].items() if "runner" in place)
    assert memory.memory_found(worker_of(version)) == {
        "weights_bytes": 16 * GB,
        "activation_peak_bytes": 2 * GB,
        "graph_estimate_bytes": 1 * GB,
        "other_bytes": 3 * GB,
        "kv_cache_bytes": 100 * GB,
        "requested_bytes": 122 * GB,
        "total_bytes": 150 * GB,
    }


def test_what_was_not_profiled_is_unknown_and_not_zero(memory: ModuleType) -> None:
    """With a KV cache of a set size, vLLM skips its profile."""
    bare = SimpleNamespace(model_runner=SimpleNamespace(model_memory_usage=16 * GB))
    found = memory.memory_found(bare)
    assert found.pop("weights_bytes") == 16 * GB
    assert set(found.values()) == {None}


def test_what_graphs_hold_is_what_lies_in_pools_of_their_own(memory: ModuleType) -> None:
    """A torch that does not name pools leaves it unknown."""
    segments = [{"total_size": 5, "segment_pool_id": (0, 0)}, {"total_size": 3, "segment_pool_id": (0, 1)}]
    assert memory.pool_bytes(segments) == 3
    assert memory.pool_bytes([{"total_size": 5}]) is None
