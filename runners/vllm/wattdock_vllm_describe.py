"""Read back what an engine runs with from its own configuration."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from wattdock_runner.json_ready import json_ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Where vLLM's configuration keeps an engine argument by another name.
OTHER_NAMES = {
    "enable_mamba_cache_stochastic_rounding": "mamba_config.enable_stochastic_rounding",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "limit_mm_per_prompt": "model_config.multimodal_config.limit_per_prompt",
    "lora_target_modules": "lora_config.target_modules",
    "mamba_backend": "mamba_config.backend",
    "mamba_cache_philox_rounds": "mamba_config.stochastic_rounding_philox_rounds",
    "mamba_ssu_algorithm": "mamba_config.ssu_algorithm",
    "scheduling_policy": "scheduler_config.policy",
    "spec_method": "speculative_config.method",
    "spec_model": "speculative_config.model",
    "spec_tokens": "speculative_config.num_speculative_tokens",
}
# Parts of its parts, whose names are those of engine arguments.
INNER_PARTS = ("model_config.multimodal_config", "offload_config.uva", "offload_config.prefetch")
# Its names are the same, and say what a drafting model runs with.
DRAFTS_OWN = "speculative_config"
# Results of resolving the arguments that decide how fast an engine is.
RESOLVED = ("num_gpu_blocks", "dtype", "max_num_batched_tokens", "async_scheduling")


def effective_engine_args(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return what the engine holds of its arguments after its start; JSON-ready.

    Those that nothing in its configuration holds are left out: what was asked says nothing of what is in effect.

    Args:
        config: A VllmConfig.
        names: Of all engine arguments.
    """
    held = _held(config)
    return {name: json_ready(held[name]) for name in sorted({*names, *RESOLVED}) if name in held}


def _held(config: Any) -> dict[str, Any]:
    """Return all that a configuration and its parts hold, by an engine argument's name where it has one."""
    parts = [config, *(getattr(config, field.name) for field in fields(config) if field.name != DRAFTS_OWN)]
    parts += [_at(config, place) for place in INNER_PARTS]
    held: dict[str, Any] = {"enable_lora": config.lora_config is not None}
    # Only what an instance has: its class has the defaults of what it was made from and did not keep.
    for part in filter(is_dataclass, parts):
        held = vars(part) | held
    for name, place in OTHER_NAMES.items():
        path, _, attribute = place.rpartition(".")
        if hasattr(holder := _at(config, path), attribute):
            held[name] = getattr(holder, attribute)
    return held


def _at(config: Any, place: str) -> Any:
    """Return what lies at a dotted path; None where a part of it is absent."""
    for name in place.split("."):
        config = getattr(config, name, None)
    return config


def attention_backend(by_worker: Iterable[Sequence[str] | None]) -> str | None:
    """Return the names of the attention backends that an engine's layers run on; None where a worker cannot tell."""
    told = list(by_worker)
    return None if None in told else ", ".join(sorted({name for names in told for name in names or ()})) or None


def parallelism(config: Any, layers_by_gpu: Mapping[str, int]) -> dict[str, Any]:
    """Return how the model is split, from a ParallelConfig; `devices` holds layers by GPU UUID."""
    sizes = {"tensor": config.tensor_parallel_size, "pipeline": config.pipeline_parallel_size}
    split = {kind: size for kind, size in sizes.items() if size > 1}
    size_fields = {f"{kind}_parallel_size": size for kind, size in split.items()}
    return {"kind": "+".join(split) or "none", **size_fields, "devices": dict(layers_by_gpu)}
