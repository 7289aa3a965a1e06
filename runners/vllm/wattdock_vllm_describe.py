"""Read back what an engine runs with from its own configuration."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from wattdock_vllm_arguments import engine_arguments

from wattdock_runner.json_ready import json_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where vLLM's configuration calls an engine argument by another name.
OTHER_NAMES = {"kv_cache_dtype": "cache_dtype"}
# Results of resolving the arguments that decide how fast an engine is.
RESOLVED = ("num_gpu_blocks", "dtype", "max_num_batched_tokens", "async_scheduling")


def effective_engine_args(config: Any, args: Any) -> dict[str, Any]:
    """Return every engine argument as the engine holds it after its start; JSON-ready.

    Args:
        config: A VllmConfig.
        args: The EngineArgs it was made from, for arguments that no configuration keeps.
    """
    parts = [config, *(getattr(config, field.name) for field in fields(config)), args]
    names = {*(engine_arguments() or ()), *RESOLVED}
    return {name: json_ready(_find(OTHER_NAMES.get(name, name), parts)) for name in sorted(names)}


def _find(name: str, parts: list[Any]) -> Any:
    holders = (part for part in parts if is_dataclass(part) and hasattr(part, name))
    return getattr(next(holders, None), name, None)


def parallelism(config: Any, layers_by_gpu: Mapping[str, int]) -> dict[str, Any]:
    """Return how the model is split, from a ParallelConfig; `devices` holds layers by GPU UUID."""
    sizes = {"tensor": config.tensor_parallel_size, "pipeline": config.pipeline_parallel_size}
    split = {kind: size for kind, size in sizes.items() if size > 1}
    size_fields = {f"{kind}_parallel_size": size for kind, size in split.items()}
    return {"kind": "+".join(split) or "none", **size_fields, "devices": dict(layers_by_gpu)}
